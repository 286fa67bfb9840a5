"""Device profiles: files, known names, what is measured, and the commands about them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import answer, run
from torch._subclasses import FakeTensorMode

from remat import InvalidOption
from remat.errors import UnknownName
from remat.predict.time import Roofline
from remat.predict.time.device import DeviceProfile, cache_folder, measured_file
from remat.predict.time.known_devices import ALIASES, KNOWN, find_device

PROFILE = DeviceProfile("mine", {"float32": 1e12, "float16": 4e12}, bytes_per_s=1e11, launch_ns=900, source="a test")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees, or leaves, what was measured on the machine."""
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "remat"


@pytest.mark.parametrize("profile", [PROFILE, *KNOWN.values()], ids=lambda profile: profile.name)
def test_what_is_saved_is_loaded(profile: DeviceProfile, tmp_path: Path) -> None:
    profile.save(tmp_path / "device.json")
    assert DeviceProfile.load(tmp_path / "device.json") == profile
    assert find_device(tmp_path / "device.json") == find_device(str(tmp_path / "device.json")) == profile


def put(**entries: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(entries)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (put(format="remat.graph"), "not a device profile"),
        (put(version=2), "version 2, but this remat reads 1"),
        (put(color="red"), "unknown entry 'color'; there are: bytes_fraction, bytes_per_s, "),
        (lambda document: document.pop("bytes_per_s"), "'bytes_per_s' is missing"),
        (put(name=""), r"DeviceProfile\.name must be a text, got ''"),
        (put(source=7), r"DeviceProfile\.source must be a text, got 7"),
        (put(flops_per_s={"float16": 1e12}), r'flops_per_s must map element types, "float32" at least, got'),
        (put(flops_per_s=1e12), r'flops_per_s must map element types, "float32" at least, got 1'),
        (put(flops_per_s={"float32": 0}), r"flops_per_s\['float32'\] must be a positive number, got 0"),
        (put(bytes_per_s=-1), r"DeviceProfile\.bytes_per_s must be a positive number, got -1"),
        (put(bytes_per_s="fast"), r"DeviceProfile\.bytes_per_s must be a positive number, got 'fast'"),
        (put(bytes_per_s=True), r"DeviceProfile\.bytes_per_s must be a positive number, got True"),
        (put(bytes_per_s=float("inf")), r"DeviceProfile\.bytes_per_s must be a positive number, got inf"),
        (put(bytes_per_s=10**400), r"DeviceProfile\.bytes_per_s must be a positive number, got 1000"),
        (put(flops_per_s={"float32": float("nan")}), r"flops_per_s\['float32'\] must be a positive number, got nan"),
        (put(launch_ns=-1), r"DeviceProfile\.launch_ns must be a number, not negative, got -1"),
        (put(bytes_fraction=1.5), r"DeviceProfile\.bytes_fraction must be at most 1, got 1\.5"),
        (put(masked_attention_fraction=0), r"masked_attention_fraction must be a positive number, got 0"),
        (put(flops_fraction=0), r"DeviceProfile\.flops_fraction must be a positive number, got 0"),
    ],
)
def test_a_bad_profile_is_one_clear_error(
    corrupt: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.json"
    PROFILE.save(path)
    document = json.loads(path.read_text())
    corrupt(document)
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidOption, match=rf"bad\.json: .*{message}"):
        Roofline(path)


def test_known_devices_go_by_name() -> None:
    assert find_device("h200") is KNOWN["h200"]
    assert all(find_device(alias) is KNOWN[name] for alias, name in ALIASES.items())
    assert find_device(PROFILE) is PROFILE
    with pytest.raises(
        UnknownName, match="no device is named 'rtx-4091', and there is no such file; did you mean 'rtx-4090'"
    ):
        find_device("rtx-4091")
    with pytest.raises(FileNotFoundError):
        find_device("nothing.json")
    with pytest.raises(
        InvalidOption, match=r"device must be a name, a file or a remat\.predict\.time\.DeviceProfile, got 7"
    ):
        find_device(7)  # type: ignore[arg-type]


def test_figures_may_be_numpy_s(tmp_path: Path) -> None:
    rates = {"float32": np.int64(10**12), "float16": np.float64(4e12)}
    profile = replace(PROFILE, flops_per_s=rates, bytes_per_s=np.float32(2.0**36), launch_ns=np.int32(900))
    assert profile == replace(PROFILE, bytes_per_s=2.0**36)
    profile.save(tmp_path / "device.json")
    assert DeviceProfile.load(tmp_path / "device.json") == profile


def test_a_file_may_lie_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    PROFILE.save(tmp_path / "mine.json")
    assert find_device("~/mine.json") == PROFILE


def test_types_that_are_not_listed_go_by_float32() -> None:
    assert replace(PROFILE, flops_fraction=0.5).reached_flops_per_s("float16") == 2e12
    assert PROFILE.reached_flops_per_s("float64") == PROFILE.reached_flops_per_s("float32") == 1e12


def test_a_profile_does_not_change_under_its_users() -> None:
    rates = {"float32": 1e12}
    profile = replace(PROFILE, flops_per_s=rates)
    rates["float32"] = 5
    assert profile.flops_per_s == {"float32": 1e12}
    assert hash(profile) == hash(replace(profile))


def test_here_is_what_was_measured_last(folder: Path) -> None:
    with pytest.raises(
        InvalidOption, match='device "here": this machine has not been measured yet; run `remat device`'
    ):
        find_device("here")
    folder.mkdir(parents=True)
    PROFILE.save(measured_file("cpu"))
    assert find_device("here") == PROFILE
    replace(PROFILE, name="gpu").save(measured_file("cuda"))
    assert find_device("here").name == "gpu", "an accelerator comes first"


@pytest.mark.parametrize(
    ("platform", "variable", "expected"),
    [
        ("linux", "XDG_CACHE_HOME", "{set}/remat"),
        ("linux", None, "{home}/.cache/remat"),
        ("darwin", None, "{home}/Library/Caches/remat"),
        ("win32", "LOCALAPPDATA", "{set}/remat"),
    ],
)
def test_files_lie_where_the_platform_keeps_caches(
    platform: str, variable: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "set"))
    assert cache_folder() == Path(expected.format(set=tmp_path / "set", home=tmp_path / "home"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures small things: what they give is real, but says little about the machine."""
    from remat.pytorch.measure import ceilings

    monkeypatch.setattr(ceilings, "_LARGEST", 256)
    monkeypatch.setattr(ceilings, "_COPIED_BYTES", {"cpu": 2**20})
    monkeypatch.setattr(ceilings, "_LAUNCHES", 10)


def test_this_machine_can_be_measured(quick: None, folder: Path) -> None:
    from remat.pytorch.measure.ceilings import measured_device

    measured = measured_device("cpu")
    assert measured == DeviceProfile.load(folder / "device-cpu.json") == find_device("here")
    assert "float32" in measured.flops_per_s
    assert "measured by `remat device` on 20" in measured.source
    assert (measured.flops_fraction, measured.bytes_fraction) == (1, 1)
    replace(measured, source="kept").save(folder / "device-cpu.json")
    assert measured_device("cpu").source == "kept", "measured once"


def test_ceilings_of_another_device_are_not_taken_for_those_of_this_one(quick: None, folder: Path) -> None:
    """A folder may be shared by machines, and a process may be given fewer threads than the last."""
    from remat.pytorch.measure.ceilings import measured_device
    from remat.pytorch.measure.timing import device_name

    folder.mkdir(parents=True)
    PROFILE.save(folder / "device-cpu.json")
    measured = measured_device("cpu")
    assert measured.name == device_name(torch.device("cpu"))
    assert find_device("here") == PROFILE, "what `remat device` measured stays"
    (own,) = set(folder.iterdir()) - {folder / "device-cpu.json"}
    replace(measured, source="kept").save(own)
    assert measured_device("cpu").source == "kept"


def test_nothing_fake_is_measured(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from remat.pytorch.measure.ceilings import measure_device
    from remat.pytorch.measure.timing import Stopwatch

    seen: set[type] = set()
    best_ns = Stopwatch.best_ns

    def spy(self: Stopwatch, call: Callable[[], Any], runs: int = 5) -> float:
        seen.add(type(call()))
        return best_ns(self, call, runs)

    monkeypatch.setattr(Stopwatch, "best_ns", spy)
    with FakeTensorMode():  # as where torch compiles
        measure_device("cpu")
    assert seen == {torch.Tensor, type(None)}, "products and copies; a row of kernels returns nothing"


def test_the_command_measures_and_keeps(quick: None, folder: Path, tmp_path: Path) -> None:
    assert "device-cpu.json" in run("device", "--device", "cpu").output
    assert Roofline("here").device == "here"
    document = answer("device", "--device", "cpu", "-o", tmp_path / "new" / "mine.json")
    assert document["file"].endswith("mine.json")
    assert DeviceProfile.load(document["file"]).bytes_per_s == document["bytes_per_s"]


def test_the_command_lists(folder: Path) -> None:
    text = run("device", "--list").output
    assert all(name in text for name in KNOWN)
    assert "here" not in answer("device", "--list")["devices"]
    folder.mkdir(parents=True)
    PROFILE.save(measured_file("cpu"))
    assert answer("device", "--list")["devices"]["here"]["name"] == "mine"
