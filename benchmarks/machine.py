"""Shared by all benchmarks: storage of results, and measurement of time and memory."""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent


def commit() -> str:
    """The current commit, with a plus sign if files have changed since."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE,
    )
    return found.stdout.strip()


class Kept(dict):
    """Measurements with their commits; also in a file, line by line, if a path is given."""

    def __init__(self, path=None):
        self.path, self.commits = path, {}
        for line in Path(path).read_text().splitlines() if path and Path(path).exists() else []:
            key, value, *commits = json.loads(line)
            super().__setitem__(key, value)
            self.commits[key] = commits[0] if commits else "not recorded"

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.commits[key] = commit()
        if self.path:
            with open(self.path, "a") as file:
                file.write(json.dumps([key, value, self.commits[key]]) + "\n")

    def measured_at(self, keys) -> str:
        """The commits at which these were measured."""
        return ", ".join(sorted({self.commits[key] for key in keys}))


def keep(name: str, title: str, command: str, lines: list[str]):
    """Write benchmarks/results/NAME.md, with the commit and the machine it was measured on."""
    information = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in information if line.startswith("model name")), "unknown CPU")
    where = f"commit {commit()}, {cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"
    text = [f"# {title}", "", f"`{command}`, {where}.", "", *lines, ""]
    (HERE / "results" / f"{name}.md").write_text("\n".join(text))


def table(header, rows) -> list[str]:
    return [
        "| " + " | ".join(header) + " |",
        "|" + " --- |" * len(header),
        *("| " + " | ".join(map(str, row)) + " |" for row in rows),
    ]


def interleaved(calls: dict, rounds: int) -> dict:
    """Median seconds of each call, after a warm-up, interleaved so that other load disturbs all alike."""
    for call in calls.values():
        call()
    times: dict = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def in_process(script: str, what: str, *arguments):
    """Run ``python script --measure what arguments`` in its own process, and parse the last line it prints as JSON."""
    command = [sys.executable, "-W", "ignore", script, "--measure", what, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def resident(field: str) -> int:
    """Memory in bytes: VmRSS is the current one, VmHWM the peak since `forget_the_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def forget_the_peak():
    Path("/proc/self/clear_refs").write_text("5")


def before_and_after(commit: str, script: str, cases: list[list[str]], rounds: int):
    """For each case, what ``script --measure *case`` printed, a list of numbers in JSON: medians of several processes
    before and after, taking turns. The source of the former version comes from a worktree of the repository."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=HERE, check=True)
        try:
            for case in cases:
                found = {source: [] for source in (tree / "src", HERE.parent / "src")}
                for _ in range(rounds):
                    for source, taken in found.items():
                        command = [sys.executable, script, "--measure", *case]
                        environment = os.environ | {"PYTHONPATH": str(source)}
                        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                        taken.append(json.loads(done.stdout.splitlines()[-1]))
                yield [[statistics.median(column) for column in zip(*taken, strict=True)] for taken in found.values()]
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=HERE, check=True)
