"""Models the workspaces that libraries take from torch's allocator during a call, in addition to arguments and results.

The rules for CPUs come from traces of single calls of torch 2.13 on a CPU with AVX-512. oneDNN reorders the filters of
convolutions, and images that are not channels-last. Other processors and thread counts take other amounts;
`remat.pytorch.inductor.rehearsed` measures them when a plan is checked. Fused attention takes blocks per thread.

On GPUs, the backward pass of fused attention sums the gradient of the queries in single precision (`mha_bwd` of torch's
`flash_api.cpp`, `_efficient_attention_backward` of `attention_backward.cu`; cuDNN's source is not public). All three
backends were measured on an H200 (`experiments.accuracy.attention_workspaces`), with the cuDNN of torch 2.11.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from remat.facts.graph import Graph
from remat.predict.kernels.index import contiguous_strides
from remat.predict.kernels.ir import Buffer
from remat.predict.kernels.loop_groups import LoopGroup
from remat.predict.kernels.splits import host_processors
from remat.predict.kernels.strides import channels_last, is_channels_last, same_layout

# Channels are padded to a multiple of this number.
_BLOCK = 16

# oneDNN has a kernel for the gradient of filters with at most so many columns; threads share its matrix product if the
# image has at least so many positions.
_WIDEST, _FEW_PLACES = 14, 256
_ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"

# Calls that return values and indices. Of these two, an unread one is in memory until the call returns.
_IN_ORDER = ("aten.sort.", "aten.cummax.", "aten.cummin.")
_PLACE_BYTES = 8

# Scratch memory of one convolution: 8 KiB plus 4 KiB per thread, traced with 1 and 2 threads.
_SCRATCH_BYTES = 12 << 10


def workspace_bytes(graph: Graph, groups: Sequence[LoopGroup], *, gpu: bool = False) -> int:
    """Returns the bytes that a step takes in addition to its buffers; 0 for kernels and for unknown calls."""
    loop = groups[0].nests[0].loop
    if loop.generated or loop.copy:
        return 0
    op, stored = graph.ops[min(loop.values)], {buffer.value: buffer.bytes for buffer, _ in loop.reads}
    if gpu:
        return gpu_call_bytes(op, loop.arguments)
    if op.startswith(_IN_ORDER) and len(loop.writes) == 1:
        values, places = loop.arguments[0].bytes, prod(loop.arguments[0].shape) * _PLACE_BYTES
        return values if loop.writes[0].bytes == places else places
    threads = graph.meta.get("threads", "")  # where torch has one for each processor, it is left out
    known = int(threads) if threads.isdecimal() else 0
    return call_bytes(op, loop.arguments, loop.writes, stored, known or host_processors())


def call_bytes(
    op: str, arguments: Sequence[Buffer], results: Sequence[Buffer], stored: Mapping[int, int], threads: int
) -> int:
    """Returns the bytes that a CPU call takes in addition to its tensors; 0 for unknown calls.

    Args:
        arguments, results: the call's tensors, with the shapes and strides that it gets.
        stored: for each value, the bytes of the whole tensor of which the argument may be a part.
        threads: the number of torch's threads.
    """
    if op.startswith(_ATTENTION):
        return _attention(arguments, threads, backward="_backward" in op)
    if op.startswith("aten._embedding_bag_backward"):
        return _of_parts(arguments, stored) + _bags(arguments)
    if op.startswith("aten.convolution."):
        return _convolution(arguments, results, stored, threads)
    return _gradients(arguments, results, stored, threads) if "convolution_backward" in op else 0


def gpu_call_bytes(op: str, arguments: Sequence[Buffer]) -> int:
    """Returns the bytes that a GPU call takes in addition to its tensors; 0 for unknown calls.

    Args:
        arguments: in order, the gradient of the result (batch, heads, rows, width), queries, keys, and others.
    """
    if any(len(argument.shape) != 4 for argument in arguments[:3]):  # a graph may have no shapes
        return 0
    backend = op.removeprefix("aten._scaled_dot_product_").partition("_attention_backward")[0]
    return _GPU_ATTENTION[backend](arguments) if backend in _GPU_ATTENTION else 0


def _flash(arguments: Sequence[Buffer]) -> int:
    batch, heads, rows, width = arguments[1].shape
    sums = 4 * batch * heads * _up(rows, 128) * (_up(width, 32 if width <= 128 else 64) + 1)
    both = [arguments[0], *arguments[4:5]]  # the gradient of the result, and the result
    return sums + _of_all_heads(arguments) + sum(one.bytes for one in both if not _has_heads_inside(one))


def _cudnn(arguments: Sequence[Buffer]) -> int:
    batch, heads, rows, width = arguments[1].shape
    return 4 * batch * heads * rows * (width + 1) + _of_all_heads(arguments)


# Blocks of the queries' gradient are summed one by one, each with a lock (`GradQTempStorage` of torch's
# `kernel_backward.h`). Their sizes are those of the kernels for chips from the A100 on (`cutlassB.h`).
def _efficient(arguments: Sequence[Buffer]) -> int:
    batch, heads, rows, width = arguments[1].shape
    of_rows = 64 if width <= 64 else 128
    of_width = 128 if 64 < width <= 128 and arguments[1].itemsize == 2 else 64
    blocks = batch * heads * -(-rows // of_rows) * -(-width // of_width)
    copied = 0 if _has_heads_inside(arguments[0]) else arguments[0].bytes
    return blocks * (4 * of_rows * of_width + 16) + 4 * batch * heads * rows + copied


_GPU_ATTENTION = {"flash": _flash, "cudnn": _cudnn, "efficient": _efficient}


# If several query heads share keys and values, each head first computes separate gradients of them.
def _of_all_heads(arguments: Sequence[Buffer]) -> int:
    gradient, queries, keys = arguments[:3]
    batch, heads, _, width = queries.shape
    return 2 * gradient.itemsize * batch * heads * keys.shape[2] * width if keys.shape[1] < heads else 0


# Whether memory has all heads of a row side by side, as when they are slices of one product; others are copied.
def _has_heads_inside(buffer: Buffer) -> bool:
    if len(buffer.shape) != 4:  # a graph may have no shapes
        return False
    batch, heads, rows, width = buffer.shape
    by_batch, by_row, by_head, by_column = contiguous_strides((batch, rows, heads, width))
    strides = buffer.strides or contiguous_strides(buffer.shape)
    return same_layout(buffer.shape, strides, (by_batch, by_head, by_row, by_column))


# Each thread has one block of rows by columns, two in the backward pass, which also copies the gradient of the result.
def _attention(arguments: Sequence[Buffer], threads: int, *, backward: bool) -> int:
    query, key = (argument.shape for argument in arguments[backward : backward + 2])
    rows = min(query[-2], 256 if query[-2] >= 768 else 64 if query[-2] >= 192 else 32)
    columns = min(key[-2], 512)
    if not backward:
        return 4 * threads * rows * (columns + 2 + query[-1])
    copied = 0 if _has_heads_inside(arguments[0]) else arguments[0].bytes
    return 4 * (threads * 2 * rows * columns + rows) + copied


# The gradient of an embedding table after sums, averages or maxima; averages take a quarter less.
def _bags(arguments: Sequence[Buffer]) -> int:
    gradient, indices, *_, sizes, maxima = arguments
    return 3 * gradient.bytes + sizes.bytes if len(maxima.shape) > 1 else 4 * indices.bytes


def _convolution(
    arguments: Sequence[Buffer], results: Sequence[Buffer], stored: Mapping[int, int], threads: int
) -> int:
    image, filters = arguments[:2]
    (result,) = results
    if threads == 1 and _is_torchs_own(image, filters, result):
        return _joined(results, _groups(image, filters, result.shape[1]))
    if _last(image) or _last(filters):
        return _turned(image, stored) + _reordered(image, filters, result.shape[1], backward=False)
    blocks = _Blocks.of(image, filters, result)
    return _of_parts(arguments, stored) + max(
        blocks.read + blocks.of_filters + blocks.result - result.bytes, blocks.result
    )


# The larger of two phases: the gradient of the image, then those of filters and bias.
def _gradients(arguments: Sequence[Buffer], results: Sequence[Buffer], stored: Mapping[int, int], threads: int) -> int:
    gradient, image, filters = arguments[:3]
    if threads == 1 and _is_torchs_own(image, filters, gradient):
        return _joined(results, _groups(image, filters, gradient.shape[1]))
    of_image = image.bytes if any(buffer.shape == image.shape for buffer in results) else 0
    rest = sum(buffer.bytes for buffer in results) - of_image
    if _last(image) or (filters.shape[1] > 1 and _last(filters)):  # saved filters of one channel keep their layout
        first = _reordered(image, filters, gradient.shape[1], backward=True) - rest
        of_filters = any(buffer.shape == filters.shape for buffer in results)
        second = _of_filters(gradient, image, filters, rest, threads) if of_filters else 0
        turned = _turned(gradient, stored) + _turned(image, stored)
        return turned + max(first if of_image else 0, second)
    of_parts, blocks = _of_parts(arguments, stored), _Blocks.of(image, filters, gradient)
    read = blocks.read
    if image.strides not in (None, contiguous_strides(image.shape)):  # a row-major copy comes first
        of_parts, read = of_parts + image.bytes, 0
    first = max(blocks.result + blocks.filters + blocks.image - image.bytes, blocks.image)
    if _groups(image, filters, gradient.shape[1]) == 1 and _has_stride(image, filters, gradient):
        # The gradient of the image has its channels last, and is copied twice.
        first = max(blocks.result + blocks.filters, 2 * image.bytes)
    of_filters = sum(buffer.bytes for buffer in results if buffer.shape == filters.shape)
    second = max(blocks.result + read + blocks.of_filters - of_filters, blocks.of_filters) if of_filters else 0
    return of_parts + max(first - rest if of_image else 0, second)


# For images whose channels are not last, oneDNN copies everything into blocks of channels, and pads the last block. An
# image with less than a block of channels is read as it is (`is_1stconv` in `jit_avx512_common_conv_kernel.cpp`).
@dataclass(frozen=True)
class _Blocks:
    """Holds the bytes of the tensors of a convolution in blocks of channels.

    Attributes:
        image, result: both in blocks.
        read: the copy of the image that the convolution reads; 0 if it reads the image as it is.
        filters: the copy of the filters from which the gradient of the image is computed.
        of_filters: the copy of the filters that the convolution reads; their gradient takes as much.
    """

    image: int
    read: int
    filters: int
    of_filters: int
    result: int

    @classmethod
    def of(cls, image: Buffer, filters: Buffer, result: Buffer) -> _Blocks:
        channels, (out, within) = image.shape[1], filters.shape[:2]
        groups = _groups(image, filters, result.shape[1])
        in_blocks = _in_block(image.bytes, channels)
        is_whole = groups > 1 or within >= _BLOCK
        of_filters = filters.bytes if groups > 1 else _in_block(filters.bytes, out)
        both = of_filters if groups > 1 else _in_block(of_filters, within)
        read = in_blocks if is_whole else 0
        return cls(in_blocks, read, both, both if is_whole else of_filters, _in_block(result.bytes, result.shape[1]))


def _in_block(size: int, channels: int) -> int:
    return size // max(channels, 1) * _up(channels, _BLOCK)


# Dilated filters take less from an image than half of it, unless the image is small.
def _has_stride(image: Buffer, filters: Buffer, result: Buffer) -> bool:
    sizes = zip(image.shape[2:], filters.shape[2:], result.shape[2:], strict=True)
    return any(made < read - width + 1 and 2 * made <= read + width + 2 for read, width, made in sizes)


# With one thread, torch itself computes convolutions of less than 16 images with filters of one position and no stride
# (`use_mkldnn` of its `Convolution.cpp`): one group after the other, whose results it then copies into one tensor.
def _is_torchs_own(image: Buffer, filters: Buffer, result: Buffer) -> bool:
    is_plain = prod(filters.shape[2:]) == 1 and image.shape[2:] == result.shape[2:]
    return is_plain and image.shape[0] < 16 and image.itemsize == 4


def _joined(results: Sequence[Buffer], groups: int) -> int:
    return sum(buffer.bytes for buffer in results) if groups > 1 else 0


# The reordered filters of a convolution, with its scratch memory. The usual kernel (`brgconv`) pads only the channels
# that it writes; groups of few channels use another kernel, which pads both. The gradient of an image is a
# convolution with read and written channels exchanged, like a transposed convolution.
def _reordered(image: Buffer, filters: Buffer, results: int, *, backward: bool) -> int:
    out, within, *size = filters.shape
    groups = _groups(image, filters, results)
    out //= groups
    read, written = (within, out) if backward == (results != filters.shape[0]) else (out, within)
    if groups == 1 or read > _BLOCK:
        return groups * read * _up(written, _BLOCK) * prod(size) * filters.itemsize + _SCRATCH_BYTES
    if within < _BLOCK // 2:
        return filters.bytes
    block = _BLOCK if max(read, written) > _BLOCK // 2 else _BLOCK // 2
    return groups * _up(read, block) * _up(written, block) * prod(size) * filters.itemsize


# oneDNN has kernels for filters of up to 14 columns (`init_conf` in `jit_avx512_common_conv_kernel.cpp`), which do not
# pad images with less than a block of channels (`is_1stconv` there). Wider filters use a matrix product: each thread
# copies an image and the window of each position, and sums filters (`gemm_convolution_utils.cpp`).
def _of_filters(gradient: Buffer, image: Buffer, filters: Buffer, rest: int, threads: int) -> int:
    out, within, *size = filters.shape
    groups = _groups(image, filters, gradient.shape[1])
    if size[-1] > _WIDEST and groups == 1:
        batch, places = image.shape[0], prod(gradient.shape[2:])
        columns = prod(filters.shape[1:]) * places * filters.itemsize
        apart = threads if batch > 1 and places // threads < _FEW_PLACES else 1
        return apart * (4 * filters.bytes + image.bytes // batch + columns)
    if groups > 1 and within < _BLOCK // 2 and max(size) <= min(3, *image.shape[2:]):
        return filters.bytes + rest
    read = within if groups == 1 and within < _BLOCK else _up(within, _BLOCK)
    return groups * _up(out // groups, _BLOCK) * read * prod(size) * filters.itemsize + rest


# A transposed convolution, whose filters begin with the image's channels, counts as having one group.
def _groups(image: Buffer, filters: Buffer, results: int) -> int:
    return image.shape[1] // filters.shape[1] if results == filters.shape[0] else 1


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


# An argument that is a part of a tensor is copied first.
def _of_parts(arguments: Sequence[Buffer], stored: Mapping[int, int]) -> int:
    return sum(argument.bytes for argument in arguments if argument.bytes < stored.get(argument.value, 0))


# A copy into channels-last layout, like `contiguous(memory_format=...)`; it includes the copy of a part.
def _turned(buffer: Buffer, stored: Mapping[int, int]) -> int:
    if len(buffer.shape) != 4:
        return _of_parts([buffer], stored)
    strides = buffer.strides or contiguous_strides(buffer.shape)
    return 0 if same_layout(buffer.shape, strides, channels_last(buffer.shape)) else buffer.bytes


def _last(buffer: Buffer) -> bool:
    return is_channels_last(buffer.shape, buffer.strides or contiguous_strides(buffer.shape))
