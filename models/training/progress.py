"""Shows the progress of a run: a bar on a terminal, otherwise a line every 30 s.

The bar and the lines have the loss, the examples per second and the time left.
"""

import time
from collections import deque
from typing import NamedTuple, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

LINE_SECONDS = 30.0
_RECENT_STEPS = 200


class _Step(NamedTuple):
    """A report of progress: its time (`time.monotonic`, in seconds), how many steps are done, the loss (None: there is
    no loss), and the number of examples. One report may cover several steps.
    """

    at: float
    done: int
    loss: float | None
    examples: int


class Watcher(Protocol):
    """The object to which a run reports its stages, steps and losses."""

    def say(self, text: str) -> None:
        """Show one line of text."""

    def start(self, name: str, done: int, total: int) -> None:
        """Show the start of the stage `name`. `done` of its `total` steps are done already, for example in a resumed
        run.
        """

    def step(self, done: int, total: int, loss: float | None, examples: int) -> None:
        """Show the end of a step: `done` of the `total` steps of the stage are done now.

        `loss` is None if the stage has no loss. `examples` is the number of examples of the step; 0: not counted.
        """


class ConsoleWatcher:
    """Shows a run on a console, with mean loss and speed over the last steps. The object is a context manager, which
    shows bars only while it is open.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task: TaskID | None = None
        self._name = ""
        self._recent: deque[_Step] = deque(maxlen=_RECENT_STEPS)
        self._line_at = 0.0

    def __enter__(self) -> "ConsoleWatcher":
        self._bars.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def start(self, name: str, done: int, total: int) -> None:
        """Start a bar for the stage `name`, and stop the bar of the stage before."""
        self._name = name
        self._recent.clear()
        self._line_at = time.monotonic()
        if self._task is not None:
            self._bars.stop_task(self._task)
        self._task = self._bars.add_task(name, total=total, completed=done, figures="")

    def step(self, done: int, total: int, loss: float | None, examples: int) -> None:
        """Advance the bar; without a terminal, print a line every `LINE_SECONDS` and after the last step."""
        now = time.monotonic()
        self._recent.append(_Step(now, done, loss, examples))
        if self._task is None:
            return
        figures = self._figures(total - done)
        self._bars.update(self._task, completed=done, total=total, figures=figures)
        if not self._console.is_terminal and (now - self._line_at >= LINE_SECONDS or done == total):
            self._line_at = now
            self.say(", ".join(filter(None, (f"{self._name}: step {done} of {total}", figures))))

    def _figures(self, steps_left: int) -> str:
        losses = [step.loss for step in self._recent if step.loss is not None]
        shown = [f"loss {sum(losses) / len(losses):.3f}"] if losses else []
        first, last = self._recent[0], self._recent[-1]
        seconds, steps = last.at - first.at, last.done - first.done
        if seconds > 0 and steps > 0:
            examples = sum(step.examples for step in list(self._recent)[1:])
            if examples:
                shown.append(f"{examples / seconds:.0f} examples/s")
            left = round(steps_left * seconds / steps)
            shown.append(f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left")
        return ", ".join(shown)
