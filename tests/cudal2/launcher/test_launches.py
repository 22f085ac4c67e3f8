"""What reaches the driver: configurations, attributes, argument bytes, tensor maps, workspaces."""

import struct

import pytest

from cudal2_agent.contract.errors import LauncherError
from cudal2_agent.contract.records.task import GemmTask, Layout
from tests.cudal2.launcher.conftest import OUT, TASK, kernel_of

A, B, D, STREAM = 0x10000, 0x20000, 0x30000, 0x7
MAP_A = {"tensor_map": {"of": "A", "box": [64, 128], "swizzle": 128, "l2": 256}}
MAP_B = {"tensor_map": {"of": "B", "box": [32, 16], "swizzle": 64, "l2": 0}}
SCRATCH = {"workspace": 32}


def words(argument: str) -> tuple[int, ...]:
    data = bytes.fromhex(argument)
    return struct.unpack(f"<{len(data) // 8}Q", data)


def test_a_launch_reaches_the_driver_as_planned(opened, fake):
    launch = {
        "grid": [6, 4, 2],
        "block": [64, 2, 1],
        "cluster": [2, 2, 1],
        "dynamic_smem": 50_000,
        "programmatic": True,
        "args": [{"tensor": "A"}, {"tensor": "B"}, OUT],
    }
    opened().load(kernel_of(launch)).launch(A, B, D, STREAM)
    found = fake.events("attribute", "launch")
    assert found[0] == {"call": "attribute", "entry": "gemm", "dynamic_shared": 50_000}
    assert found[1] == {
        "call": "launch",
        "entry": "gemm",
        "grid": [6, 4, 2],
        "block": [64, 2, 1],
        "shared": 50_000,
        "stream": STREAM,
        "attributes": {"cluster": [2, 2, 1], "programmatic": 1},
        "arguments": [struct.pack("<Q", address).hex() for address in (A, B, D)],
    }


def test_a_bias_reaches_the_driver_and_its_absence_does_not(opened, fake):
    task, bias = TASK.model_copy(update={"bias": True}), 0x40000
    args = [{"tensor": "A"}, {"tensor": "bias"}, {"tensor_map": {"of": "bias", "box": [64, 1]}}, OUT]
    kernel = opened().load(kernel_of({"args": args}, task=task))
    kernel.launch(A, B, D, STREAM, bias)
    [event] = fake.events("launch")
    assert [words(one)[0] for one in event["arguments"]] == [A, bias, bias, D]
    assert words(event["arguments"][2])[1:3] == (task.n, 1)
    for wrong, why in ((0, "none is given"), (bias + 128, "aligned to 256 bytes")):
        with pytest.raises(LauncherError, match=why):
            kernel.launch(A, B, D, STREAM, wrong)
    assert fake.events("launch") == []
    with pytest.raises(LauncherError, match="the kernel reads no third operand"):
        opened().load(kernel_of()).launch(A, B, D, STREAM, bias)


def test_the_second_matrix_of_a_gated_product_reaches_the_driver(opened, fake):
    task = GemmTask(m=256, n=512, k=128, layout=Layout.TN, activation="silu", gated=True)
    up, box = 0x40000, {"box": [64, 128], "swizzle": 128}
    args = [{"tensor_map": {"of": "B", **box}}, {"tensor_map": {"of": "up", **box}}, {"tensor": "up"}, {"tensor": "A"}, OUT]
    kernel = opened().load(kernel_of({"args": args}, task=task))
    kernel.launch(A, B, D, STREAM, up)
    [event] = fake.events("launch")
    gate, second, *pointers = (words(one) for one in event["arguments"])
    assert (gate[0], second[0], gate[1:9]) == (B, up, second[1:9])
    assert second[1:3] == (task.k, task.n)
    assert [one[0] for one in pointers] == [up, A, D]
    assert kernel.tensor_maps == 2
    with pytest.raises(LauncherError, match="the kernel reads a third operand, and none is given"):
        kernel.launch(A, B, D, STREAM)


def test_a_plain_launch_has_no_attributes(opened, fake):
    opened().load(kernel_of()).launch(A, B, D, STREAM)
    assert [event["attributes"] for event in fake.events("launch")] == [{}]


def test_a_cluster_of_more_than_eight_is_allowed_first(opened, fake):
    opened().load(kernel_of({"cluster": [4, 4, 1], "grid": [4, 4, 1]}))
    assert fake.events("attribute") == [{"call": "attribute", "entry": "gemm", "non_portable": 1}]


def test_scalars_arrive(opened, fake):
    scalars = [
        {"scalar": -7},
        {"scalar": 2**32 - 1, "type": "u32"},
        {"scalar": -(2**63), "type": "i64"},
        {"scalar": 3, "type": "f32"},
    ]
    opened().load(kernel_of({"args": [OUT, *scalars]})).launch(A, B, D, STREAM)
    [event] = fake.events("launch")
    expected = [struct.pack("<i", -7), struct.pack("<I", 2**32 - 1), struct.pack("<q", -(2**63)), struct.pack("<f", 3.0)]
    assert [bytes.fromhex(each) for each in event["arguments"][1:]] == expected


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(("element", "code"), [("f16", 6), ("bf16", 9)])
def test_tensor_maps_describe_the_operands_as_they_lie(opened, fake, layout, element, code):
    task = GemmTask(m=256, n=512, k=128, layout=layout, element=element)
    opened().load(kernel_of({"args": [MAP_A, MAP_B, OUT]}, task=task)).launch(A, B, D, STREAM)
    [event] = fake.events("launch")
    a_rows, a_columns = (128, 256) if layout is Layout.NT else (256, 128)
    b_rows, b_columns = (512, 128) if layout is Layout.TN else (128, 512)
    assert words(event["arguments"][0])[:9] == (A, a_columns, a_rows, 2 * a_columns, 64, 128, code, 3, 3)
    assert words(event["arguments"][1])[:9] == (B, b_columns, b_rows, 2 * b_columns, 32, 16, code, 2, 0)


def test_tensor_maps_of_three_dimensions_and_of_the_workspace_reach_the_driver(opened, fake):
    slabs = {"of": "A", "dims": [64, "M", "K//64"], "strides": ["K", 64], "box": [64, 128, 2], "swizzle": 128}
    packed = {"of": "workspace", "element": "f32", "offset_bytes": 1024, "dims": [4, 8, 16], "box": [4, 8, 1], "l2": 0}
    args = [{"tensor_map": slabs}, {"tensor_map": packed}, {"workspace": 0}, OUT]
    kernel = opened().load(kernel_of({"args": args}, workspace={"bytes": 1024 + 4 * 4 * 8 * 16}))
    kernel.launch(A, B, D, STREAM)
    kernel.launch(A, B, D, STREAM)
    event, again = fake.events("launch")
    assert words(event["arguments"][0])[:12] == (A, 64, 256, 2, 2 * 128, 2 * 64, 64, 128, 2, 6, 3, 2)
    [start] = words(event["arguments"][2])
    assert words(event["arguments"][1])[:12] == (start + 1024, 4, 8, 16, 16, 128, 4, 8, 1, 7, 0, 0)
    assert again["arguments"] == event["arguments"]
    assert kernel.tensor_maps == 2


def test_tensor_maps_are_encoded_once_per_address(opened, fake):
    kernel = opened().load(kernel_of({"args": [MAP_A, MAP_B, OUT]}))
    for a in (A, A, A + 4096, A):
        kernel.launch(a, B, D, STREAM)
    assert [event["address"] for event in fake.events("encode")] == [A, B, A + 4096]
    assert kernel.tensor_maps == 3


def test_the_cache_of_tensor_maps_is_bounded_and_stays_right(opened, fake):
    kernel = opened().load(kernel_of({"args": [MAP_A, OUT]}))
    addresses = [A + 256 * index for index in range(600)]
    for address in addresses + addresses[:3]:
        kernel.launch(address, B, D, STREAM)
    assert kernel.tensor_maps <= 256
    assert [words(event["arguments"][0])[0] for event in fake.events("launch")] == addresses + addresses[:3]


def test_a_zeroed_workspace_is_cleared_before_every_run_on_its_stream(opened, fake):
    launches = {"args": [OUT, SCRATCH], "programmatic": True}, {"entry": "sum", "args": [OUT, SCRATCH], "programmatic": True}
    kernel = opened().load(kernel_of(*launches, workspace={"bytes": 128, "zero": True, "zero_bytes": 64}))
    kernel.launch(A, B, D, STREAM)
    kernel.launch(A, B, D, STREAM)
    allocated, *rest = fake.events("allocate", "memset", "launch", "synchronize")
    assert allocated["bytes"] == 128
    assert [event["call"] for event in rest] == ["memset", "launch", "launch"] * 2
    assert rest[0] == {"call": "memset", "address": allocated["address"], "value": 0, "bytes": 64, "stream": STREAM}
    assert words(rest[1]["arguments"][1]) == (allocated["address"] + 32,)
    assert [event["attributes"] for event in rest[1:3]] == [{}, {"programmatic": 1}], "a memset triggers nothing"


def test_a_restored_workspace_is_cleared_once_before_its_first_use(opened, fake):
    kernel = opened().load(
        kernel_of(
            {"args": [OUT, SCRATCH], "programmatic": True}, workspace={"bytes": 256, "zero": "restored", "zero_bytes": 128}
        )
    )
    kernel.launch(A, B, D, STREAM)
    kernel.launch(A, B, D, STREAM)
    found = fake.events("allocate", "memset", "synchronize", "launch")
    assert [event["call"] for event in found] == ["allocate", "memset", "synchronize", "launch", "launch"]
    assert found[1]["bytes"] == 128
    assert found[1]["stream"] == found[2]["stream"] != STREAM, "cleared beside the caller's stream, and waited for"
    assert found[3]["attributes"] == {"programmatic": 1}


def test_each_stream_has_a_workspace_of_its_own(opened, fake):
    kernel = opened().load(kernel_of({"args": [OUT, SCRATCH]}, workspace={"bytes": 64}))
    for stream in (1, 7, 1, 7, 0):
        kernel.launch(A, B, D, stream)
    used = [words(event["arguments"][1])[0] for event in fake.events("launch")]
    assert used[0] == used[2] != used[1] == used[3]
    assert used[4] not in used[:4]
    assert kernel.workspaces == 3


def test_a_handle_that_is_used_again_is_another_stream(opened, fake):
    kernel = opened().load(kernel_of({"args": [OUT, SCRATCH]}, workspace={"bytes": 64}))
    fake.stream(7, identity=100)
    kernel.launch(A, B, D, 7)
    fake.stream(7, identity=101)
    kernel.launch(A, B, D, 7)
    first, second = [words(event["arguments"][1])[0] for event in fake.events("launch")]
    assert first != second


def test_a_capture_has_a_workspace_of_its_own_and_allocates_it_outside_the_graph(opened, fake):
    kernel = opened().load(kernel_of({"args": [OUT, SCRATCH]}, workspace={"bytes": 64, "zero": "restored"}))
    kernel.launch(A, B, D, STREAM)
    fake.events()
    fake.stream(STREAM, identity=STREAM, capture=41)
    kernel.launch(A, B, D, STREAM)
    kernel.launch(A, B, D, STREAM)
    found = fake.events("allocate", "memset", "launch")
    assert [event["call"] for event in found] == ["allocate", "memset", "launch", "launch"]
    assert found[1]["stream"] != STREAM
    fake.stream(STREAM, identity=STREAM, capture=42)
    kernel.launch(A, B, D, STREAM)
    fake.stream(STREAM, identity=STREAM)
    kernel.launch(A, B, D, STREAM)
    assert kernel.workspaces == 3


def test_the_number_of_workspaces_is_bounded(opened, fake):
    kernel = opened().load(kernel_of({"args": [OUT, SCRATCH]}, workspace={"bytes": 64}))
    fake.record(False)
    for stream in range(256):
        kernel.launch(A, B, D, stream)
    with pytest.raises(LauncherError, match="256 streams and captures"):
        kernel.launch(A, B, D, 256)
    kernel.launch(A, B, D, 255)


def test_a_thread_without_a_context_gets_one_for_the_launch_only(opened, fake):
    first, second = opened(0).load(kernel_of(task=TASK)), opened(1).load(kernel_of())
    first.launch(A, B, D, STREAM)
    second.launch(A, B, D, STREAM)
    first.launch(A, B, D, STREAM)
    assert len(fake.events("launch")) == 3, "the fake refuses a function of another device's context"
