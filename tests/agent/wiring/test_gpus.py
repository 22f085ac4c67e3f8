"""Several GPUs of one host: chips that are never mixed, one process per exclusive GPU, and what `doctor` says of them."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from cudal2_agent.agent.campaign import campaign
from cudal2_agent.agent.campaign.campaign import Campaign
from cudal2_agent.agent.cli.campaign import run, running
from cudal2_agent.agent.cli.main import main
from cudal2_agent.agent.wiring import doctor, gpus
from cudal2_agent.agent.wiring.gpus import Gpu, by_chip
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.cuda import driver, environment

H100 = "NVIDIA H100 80GB HBM3"


def gpu(index: int, name: str = H100, *, exclusive: bool = False) -> Gpu:
    return Gpu(index=index, name=name, arch=Arch.SM_90A, sms=132, exclusive=exclusive, bus=f"0000:{index:02x}:00.0")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A host with these GPUs."""
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))

    def host(*found: Gpu) -> None:
        for module in (gpus, doctor, running):
            monkeypatch.setattr(module, "visible_gpus", lambda: list(found))
        monkeypatch.setattr(driver, "no_gpu", lambda: "")
        monkeypatch.setattr(doctor, "processes_on", lambda one: one.index)

    return host


def test_gpus_of_one_chip_are_taken_together(host) -> None:
    host(gpu(0), gpu(1))
    assert run.devices_named("all") == run.devices_named("0,1") == ("cuda:0", "cuda:1")


@pytest.mark.parametrize("other", ["NVIDIA H100 PCIe", "NVIDIA H200", f"{H100} MIG 1g.10gb"])
def test_a_campaign_never_mixes_chips(host, other: str) -> None:
    host(gpu(0), gpu(1, other), gpu(2))
    chip = other.removeprefix("NVIDIA ")
    with pytest.raises(UsageError, match=rf"never mixed; choose --gpus 0,2 for H100 80GB HBM3; 1 for {chip}$"):
        run.devices_named("all")
    with pytest.raises(UsageError, match="different chips"):
        run.devices_named("0,1")
    assert run.devices_named("0,2") == ("cuda:0", "cuda:2")
    assert by_chip([gpu(0), gpu(1, other)]) == {"H100 80GB HBM3": [0], chip: [1]}


@pytest.mark.parametrize(("exclusive", "searches"), [(False, campaign.SEARCHES_PER_GPU), (True, 1)])
def test_an_exclusive_gpu_has_one_process(host, monkeypatch: pytest.MonkeyPatch, exclusive: bool, searches: int) -> None:
    host(gpu(0, exclusive=exclusive))
    slots: list[int] = []
    monkeypatch.setattr(Campaign, "run", lambda self: slots.append(len(self._gpus.slots)))
    assert main(["campaign", "run", "--shapes", "64x64x64", "--gpus", "0", "--provers", "0"]) == 0
    assert slots == [searches]


def test_doctor_says_what_is_special_of_each_gpu(host, capsys: pytest.CaptureFixture[str]) -> None:
    host(gpu(0), gpu(1, f"{H100} MIG 1g.10gb", exclusive=True))
    main(["doctor", "--json"])
    said = {one["name"]: one["detail"] for one in json.loads(capsys.readouterr().out)["checks"]}
    assert said["GPU cuda:0"] == f"{H100}, 132 SMs, target sm_90a"
    assert "1 processes use it now, so that times would be unsteady; exclusive-process mode" in said["GPU cuda:1"]
    assert said["different chips"].startswith("H100 80GB HBM3 (cuda:0), H100 80GB HBM3 MIG 1g.10gb (cuda:1)")


def test_a_part_of_a_gpu_is_a_chip_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = REFERENCE_CHIPS[Arch.SM_90A]
    sizes = {"sms": 16, "l2_bytes": whole.l2_bytes // 8, "memory_bytes": whole.memory_bytes // 8}
    monkeypatch.setattr(environment, "device_name", lambda _: f"{whole.name} MIG 1g.18gb")
    monkeypatch.setattr(environment, "_sizes", lambda _: sizes)
    monkeypatch.setattr(environment, "_dram_tbps", lambda _: 4.8)  # the driver reports the bus of the whole GPU
    found = environment.read_chip(0, Arch.SM_90A)
    assert (found.name, found.sms, found.measured) == ("H200 MIG 1g.18gb", 16, False)
    assert found.tensor_tflops == pytest.approx(whole.tensor_tflops * 16 / whole.sms)
    assert found.dram_tbps == pytest.approx(whole.dram_tbps * 16 / whole.sms)


def test_without_nvml_nobody_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def refuse() -> None:
        raise NVMLError

    monkeypatch.setitem(__import__("sys").modules, "pynvml", SimpleNamespace(NVMLError=NVMLError, nvmlInit=refuse))
    assert gpus.processes_on(gpu(0)) == 0
