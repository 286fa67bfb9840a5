"""Lists the private names of torch that remat uses, in one table, and raises one error if one is missing.

Names and parameters are checked, not version numbers. They were read and run with torch 2.11.0, 2.13.0, 2.14.0 and
2.15.0; those of `torch._inductor`, except the hook of its partitioner, with 2.13.0.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from typing import Any

import torch

from remat.errors import UnsupportedTorch

USED: dict[str, str] = {
    "torch._C": (
        "_conv_determine_backend_memory_format _current_graph_task_id _ensureCUDADeviceGuardSet "
        "_FunctionBase._raw_saved_tensors"
    ),
    "torch._dispatch.python": "no_python_dispatcher",
    "torch._dynamo.device_interface": (
        "CudaInterface device_interfaces get_registered_device_interfaces "
        "register_interface_for_device(device,device_interface)"
    ),
    "torch._dynamo.config": "accumulated_recompile_limit automatic_dynamic_shapes recompile_limit",
    "torch._dynamo.external_utils": "",
    "torch._dynamo.exc": "BackendCompilerFailed TorchDynamoException",
    "torch._dynamo.utils": "counters",
    "torch._dynamo.variables.ctx_manager": "CUDADeviceVariable",
    "torch._functorch.config": (
        "activation_memory_budget activation_memory_budget_runtime_estimator activation_memory_budget_solver "
        "aggressive_recomputation donated_buffer enable_autograd_cache enable_remote_autograd_cache"
    ),
    "torch._functorch.partitioners": (
        "choose_saved_values_set(joint_graph,node_info,memory_budget) "
        "default_partition(joint_module,num_fwd_outputs,static_lifetime_input_indices) get_default_op_list "
        "min_cut_rematerialization_partition(joint_module,num_fwd_outputs,static_lifetime_input_indices)"
    ),
    "torch._guards": "CompileContext.current_compile_id detect_fake_mode",
    "torch._higher_order_ops.triton_kernel_wrap": "kernel_side_table",
    "torch._inductor": "list_mode_options list_options",
    "torch._inductor.codecache": "PyCodeCache.load(source_code)",
    "torch._inductor.codegen.wrapper": (
        "PythonWrapperCodegen.generate(is_inference) PythonWrapperCodegen.generate_kernel_call(kernel_name) "
        "PythonWrapperCodegen.pop_codegened_graph PythonWrapperCodegen.push_codegened_graph"
    ),
    "torch._inductor.compile_fx": (
        "_recursive_post_grad_passes _recursive_record_original_output_strides compile_fx compile_fx_inner "
        "fake_tensor_prop maybe_disable_comprehensive_padding"
    ),
    "torch._inductor.config": (
        "_config _post_fusion_custom_pass fx_graph_cache fx_graph_remote_cache patch reorder_for_peak_memory "
        "shape_padding"
    ),
    "torch._inductor.custom_graph_pass": "",
    "torch._inductor.debug": "DebugContext",
    "torch._inductor.fx_passes.joint_graph": "UniformValueConstantFolder._deduce_value",
    "torch._inductor.fx_passes.post_grad": "view_to_reshape",
    "torch._inductor.graph": (
        "GraphLowering._update_scheduler GraphLowering.init_wrapper_code GraphLowering.run SubgraphLowering"
    ),
    "torch._inductor.inductor_prims": "seeds",
    "torch._inductor.ir": "Buffer.get_defining_op ComputedBuffer IRNode MultiOutput Operation.get_origins",
    "torch._inductor.memory": (
        "estimate_peak_memory(nodes,name_to_freeable_input_buf,graph_outputs) "
        "prepare_planning_info(nodes,name_to_buf,name_to_fused_node,graph_inputs,graph_outputs) "
        "topological_sort_bfs(nodes) topological_sort_dfs(nodes) "
        "topological_sort_lpmf(nodes,name_to_freeable_input_buf,name_to_buf,graph_outputs)"
    ),
    "torch._inductor.runtime.hints": "DeviceProperties.create.cache_clear",
    "torch._inductor.runtime.triton_heuristics": "CachingAutotuner._precompile_config",
    "torch._inductor.scheduler": (
        "BaseSchedulerNode.get_nodes BaseSchedulerNode.get_read_write_buffer_accesses ExternKernelSchedulerNode "
        "NopKernelSchedulerNode Scheduler.codegen"
    ),
    "torch._inductor.utils": "",
    "torch._inductor.virtualized": "V",
    "torch._prims_common": "suggest_memory_format",
    "torch._subclasses.fake_tensor": "init_gpu_context(device) unset_fake_temporarily",
    "torch.autograd": "_disable_profiler_legacy",
    "torch.autograd.profiler_legacy": "profile._start_trace",
    "torch.utils._mode_utils": "no_dispatch",
    "torch.utils._ordered_set": "OrderedSet",
    "torch.utils._triton": "",
    "triton.backends": "backends",
    "triton.backends.compiler": "GPUTarget",
    "triton.backends.driver": "DriverBase",
    "triton.knobs": "cache.dir cache.scope nvidia.dump_ptxas_log nvidia.scope",
    "triton.runtime.driver": "driver.set_active",
}
"""Module -> names in it, with spaces between them, dots for attributes, and the parameters that our calls use."""

# Stands for a name that is missing in this torch: any object of torch's may be there.
_GONE = object()


@cache
def internals(path: str) -> Any:
    """Imports one of the modules of `USED`, and checks it on its first use.

    Raises:
        UnsupportedTorch: the installed torch lacks the module, or a name that is used.
    """
    try:
        module = import_module(path)
    except ImportError as error:
        raise unsupported(f"{path} cannot be imported ({error})") from None
    for entry in USED[path].split():
        name, _, parameters = entry.rstrip(")").partition("(")
        attribute: Any = module
        for part in name.split("."):
            attribute = getattr(attribute, part, _GONE)
        needed = {*parameters.split(",")} - {""}
        if attribute is _GONE or (needed and not needed <= inspect.signature(attribute).parameters.keys()):
            raise unsupported(f"{path}.{entry.replace(',', ', ')} is gone")
    return module


def unsupported(what: str) -> UnsupportedTorch:
    """Returns the error to raise if this torch lacks something that `remat` uses."""
    return UnsupportedTorch(
        f"torch {torch.__version__} is not supported: {what}. remat works with torch 2.11 to 2.15; install one of those"
    )
