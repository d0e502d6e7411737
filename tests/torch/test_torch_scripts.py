"""TorchScripts in process: compilation, signatures of entry points, and calls of functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from qa_cluster.gears.inference.tensors import Array
from qa_cluster.gears.scripts.torch.script_caller import TorchScriptCall
from qa_cluster.gears.scripts.torch.torch_scripts import TorchScript
from qa_cluster.gears.shard.failures import GearsError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
ENTRY = "(tensors: List[Tensor], keys: List[str], args: List[str]):\n    "
ONE = np.ones(2, "<f4")


def call(
    source: str, function: str, tensors: Sequence[Array] = (ONE,), entry: Sequence[str] = (), **options: Any
) -> list[Array]:
    no_shard: Any = None  # tests with a server cover functions that call the shard
    return TorchScript("CPU", source, entry).call(TorchScriptCall(function, tensors, **options), no_shard)


def test_entry_points_get_tensors_keys_and_arguments() -> None:
    source = f"def bar{ENTRY}return tensors[0] * float(args[0]) + len(keys)\n"
    (result,) = call(source, "bar", entry=["bar"], keys=["a", "b"], arguments=["3"])
    assert result.tolist() == [5.0, 5.0]


def test_other_functions_get_tensors_in_their_places() -> None:
    source = "def bar(a, b):\n    return a - b, b\ndef rest(a, args: List[Tensor]):\n    return a + args[0] + args[1]\n"
    first, second = call(source, "bar", [ONE * 3, ONE])
    assert (first.tolist(), second.tolist()) == ([2.0, 2.0], [1.0, 1.0])
    assert call(source, "rest", [ONE, ONE, ONE])[0].tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("source", "entry", "message"),
    [
        ("def bar(a, b):\n    return a", ["bar"], "ERR Wrong number of inputs in function bar. Expected 3 but was 2"),
        ("def bar(a):\n    return a", ["baz"], "ERR Function baz does not exist in the given script."),
        (
            "def bar(tensors: List[Tensor], keys: List[str], args: List[Tensor]):\n    return tensors",
            ["bar"],
            "ERR Wrong inputs type in function bar. Expected signature similar to: "
            "def bar(tensors: List[Tensor], keys: List[str], args: List[str])",
        ),
    ],
)
def test_signatures_of_entry_points(source: str, entry: list[str], message: str) -> None:
    with pytest.raises(GearsError) as caught:
        TorchScript("CPU", source, entry)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("tensors", "function", "options", "message"),
    [
        ([ONE], "nope", {}, "ERR Function does not exist: nope"),
        ([ONE], "two", {}, "ERR Wrong number of inputs provided to function: two"),
        ([ONE] * 3, "two", {}, "ERR Wrong number of inputs provided to function: two"),
        ([ONE] * 2, "two", {"n_outputs": 1}, "ERR Function returned unexpected number of outputs - two"),
        ([ONE], "text", {}, "ERR Function returned non-tensor values - text"),
        ([ONE], "broken", {}, "ERR select(): index 7 out of range for tensor of size [2] at dimension 0"),
        ([ONE], "raising", {}, "ERR mine"),
    ],
)
def test_errors_of_calls(tensors: list[Array], function: str, options: dict[str, Any], message: str) -> None:
    source = (
        "def two(a, b):\n    return a, b\n"
        "def text(a):\n    return 'x'\n"
        "def broken(a):\n    return a[7]\n"
        "def raising(a):\n    if bool(a[0] > 0):\n        raise ValueError('mine')\n    return a\n"
    )
    with pytest.raises(GearsError) as caught:
        call(source, function, tensors, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("torch.os.system('id')", "has no attribute os"),
        ("eval('1')", "undefined value eval"),
        ("open('/etc/passwd')", "undefined value open"),
        ("torch.ops.load_library('x')", "has no attribute ops"),
        ("torch.save(a, '/nowhere')", "uses aten::save"),
        ("return torch.from_file('/etc/passwd', False, 10)", "uses aten::from_file"),
        ("import os", "ERR "),
        ("return a +", "ERR "),
    ],
)
def test_forbidden_names_in_scripts_are_refused(body: str, message: str) -> None:
    with pytest.raises(GearsError, match=message) as caught:
        TorchScript("CPU", f"def bar(a):\n    {body}\n    return a", [])
    assert "\n" not in str(caught.value)


def test_scripts_can_use_torch() -> None:
    source = (
        "def bar(a):\n"
        "    counts: List[int] = torch.jit.annotate(List[int], [1])\n"
        "    b = torch.nn.functional.relu(torch.stack([a, -a])).to(torch.float64)\n"
        "    return b, torch.norm(a) + torch.linalg.vector_norm(a) + math.pi, torch.zeros([2], dtype=torch.int64)\n"
    )
    stacked, norms, zeros = call(source, "bar")
    assert stacked.dtype == np.dtype("<f8") and stacked.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert norms.item() == pytest.approx(2 * 2**0.5 + 3.14159265)
    assert zeros.dtype == np.dtype("<i8")


def test_commands_work_in_a_stored_script_only() -> None:
    """A model's file can name the operators of scripts, but the run of a model has no user whose rights apply."""
    from qa_cluster.gears.scripts.torch.torch_operators import _execute

    with pytest.raises(GearsError, match="by the functions of a stored script only"):
        _execute("GET", "x")
