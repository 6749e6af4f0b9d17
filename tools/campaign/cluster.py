"""Faults on a Ray cluster of three nodes on this machine: what is lost, and how much is computed again.

    python tools/campaign/cluster.py --bits                       reproduce spaceship, serial against three nodes
    python tools/campaign/cluster.py --faults worker node ... --times 10

Each node is `ray start` of its own with one CPU and an address on loopback. A command runs on it, the fault strikes
while phase 1, in two parts, is under way, and the command is given again until it ends well. Its artefacts must have
the bits of a run that nobody touched. Results go to benchmarks/results/distributed.json, one entry a part. A fault is
repeated until there are so many repetitions in the file: a campaign that was stopped goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "benchmarks" / "results" / "distributed.json"
sys.path.insert(0, str(ROOT / "tests"))

from pdvf.experiment.provenance import describe_environment  # noqa: E402
from tiny import TINY, command_line  # noqa: E402

PORT = 6411
PATIENCE = 900.0
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
WORDS = ["init", "spaceship", *command_line(TINY), "--shards", "2"]
WORDS += ["--ppo.checkpoints", "40", "--ppo.steps", "20480", "--seed", "5"]
FAULTS = ("worker", "node", "head", "driver", "store", "disk")


@dataclass
class Cluster:
    """A head and two more nodes."""

    work: Path
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        self.environment = os.environ | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(24),
            "RAY_raylet_start_wait_time_s": "300",
            "RAY_worker_niceness": "0",  # others may use the machine
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        for i in range(3):
            self.nodes.append(self.node(i))
            while not self.wait_for(i + 1, self.nodes[i]):  # a machine under load may be too slow for Ray
                self.nodes[i] = self.node(i)

    def node(self, i: int, **variables: str) -> subprocess.Popen[bytes]:
        role = ["--head", "--port", str(PORT), "--include-dashboard", "false"]
        role = role if i == 0 else ["--address", f"127.0.0.1:{PORT}", "--node-ip-address", f"127.0.0.{i + 1}"]
        words = [*RAY, "start", *role, "--num-cpus", "1", "--object-store-memory", "80000000", "--block"]
        log = open(self.work / f"node{i}.log", "ab")  # noqa: SIM115
        return subprocess.Popen(words, stdout=log, stderr=log, env=self.environment | variables)

    def wait_for(self, count: int, newest: subprocess.Popen[bytes]) -> bool:
        """Waits until so many nodes are alive; not if the newest ends before."""
        program = (
            "import ray, logging, sys, time\n"
            f"ray.init('127.0.0.1:{PORT}', log_to_driver=False, logging_level=logging.CRITICAL)\n"
            f"while sum(n['Alive'] for n in ray.nodes()) < {count}:\n"
            "    time.sleep(0.5)\n"
        )
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            asking = subprocess.Popen([sys.executable, "-c", program], env=self.environment, stderr=subprocess.DEVNULL)
            while asking.poll() is None and newest.poll() is None:
                time.sleep(0.2)
            if asking.poll() == 0:
                return True
            if newest.poll() is not None:
                asking.kill()
                asking.wait()
                return False
            time.sleep(2.0)
        raise SystemExit(f"the cluster has no {count} nodes: see {self.work}")

    def kill(self, i: int) -> None:
        kill_tree(self.nodes[i].pid)
        self.nodes[i].wait()

    def stop(self) -> None:
        for node in self.nodes:
            kill_tree(node.pid)


def children(pid: int) -> list[int]:
    """Processes below one, the deepest last."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
    return found


def kill_tree(pid: int) -> None:
    for one in children(pid):
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue


def pdvf(words: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with open(log, "ab") as file:
        return subprocess.Popen([sys.executable, "-m", "pdvf", *words], stdout=file, stderr=file, env=environment)


def events(folder: Path) -> list[dict[str, Any]]:
    file = folder / "events.jsonl"
    lines = file.read_text().splitlines() if file.is_file() else []
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.1)
    raise SystemExit(f"waited in vain for {what}")


def sums(folder: Path) -> dict[str, str]:
    files = sorted((folder / "artefacts").glob("*.json"))
    return {file.stem: json.loads(file.read_text())["sha256"] for file in files}


def task_processes(cluster: Cluster) -> list[tuple[int, int]]:
    """Nodes and processes of tasks that are under way."""
    found = []
    for i, node in enumerate(cluster.nodes):
        for pid in children(node.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"pdvf.experiment.executors.task" in words:
                found.append((i, pid))
    return found


def strike(fault: str, cluster: Cluster, driver: subprocess.Popen[bytes], store: subprocess.Popen[bytes] | None) -> str:
    if fault == "worker":
        _, pid = wait_until(lambda: task_processes(cluster), "a task")[0]
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        return "killed a worker of Ray; the task's process ends with it"
    if fault == "node":
        running = wait_until(lambda: [i for i, _ in task_processes(cluster) if i], "a task on a node beside the head")
        cluster.kill(running[0])
        return f"killed node {running[0] + 1}"
    if fault == "head":
        cluster.stop()
        return "killed the head, and the other nodes with it"
    if fault == "driver":
        os.kill(driver.pid, signal.SIGKILL)
        return "killed the command"
    if fault == "store" and store is not None:
        os.kill(store.pid, signal.SIGSTOP)
        time.sleep(20.0)
        os.kill(store.pid, signal.SIGCONT)
        return "stopped the store for 20 s"
    return "one node's disk is full from the start"


def s3_server(work: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    program = (
        "import moto.server, time, boto3\n"
        "server = moto.server.ThreadedMotoServer('127.0.0.1', 5999, verbose=False); server.start()\n"
        "boto3.client('s3', endpoint_url='http://127.0.0.1:5999').create_bucket(Bucket='runs')\n"
        "print('ready', flush=True)\n"
        "time.sleep(1e6)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@contextlib.contextmanager
def prepared(fault: str, work: Path) -> Iterator[tuple[Cluster, subprocess.Popen[bytes] | None]]:
    """A cluster for one kind of fault, and an object store where the runs are in one."""
    work.mkdir(parents=True)
    cluster, store, small = Cluster(work), None, work / "small"
    try:
        if fault in ("store", "disk"):
            aws = {"AWS_ENDPOINT_URL": "http://127.0.0.1:5999", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "a"}
            os.environ.update({**aws, "AWS_DEFAULT_REGION": "us-east-1", "PDVF_CACHE": str(work / "cache")})
            store = s3_server(work, dict(os.environ))
        cluster.start()
        if fault == "disk":
            small.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)], check=True)
            cluster.kill(2)
            cluster.nodes[2] = cluster.node(2, TMPDIR=str(small))
            time.sleep(15.0)
            cluster.wait_for(3, cluster.nodes[2])
        yield cluster, store
    finally:
        cluster.stop()
        if store is not None:
            os.kill(store.pid, signal.SIGKILL)
        if small.is_dir():
            subprocess.run(["umount", "-l", str(small)], check=False)


def one(
    fault: str,
    name: str,
    work: Path,
    cluster: Cluster,
    store: subprocess.Popen[bytes] | None,
    reference: dict[str, str],
) -> dict[str, Any]:
    """One fault; what came of it. The cluster is whole again afterwards."""
    out = f"s3://runs/{name}" if store is not None else str(work / name)
    folder = work / "cache/runs/s3/runs" / name if store is not None else work / name
    words = ["train", out, "--quiet", "--executor", "ray", "--address", f"127.0.0.1:{PORT}"]
    if pdvf([*WORDS, "--out", out], cluster.environment, work / "command.log").wait():
        raise SystemExit(f"no run was begun: see {work}")
    began, told, commands = time.monotonic(), "", 0
    while True:
        commands += 1
        driver = pdvf(words, cluster.environment, work / "command.log")
        if commands == 1:
            staged = lambda: any(e["kind"] == "stage" for e in events(folder)) or driver.poll() is not None  # noqa: E731, B023
            wait_until(staged, "the first stage")
            told = strike(fault, cluster, driver, store)
            if fault == "head":
                driver.wait(PATIENCE)
                cluster.nodes.clear()
                cluster.start()
        status = driver.wait(PATIENCE)
        if status == 0 or commands == 5:
            break
    seconds = round(time.monotonic() - began)
    for i, node in enumerate(cluster.nodes):
        if node.poll() is not None:
            cluster.nodes[i] = cluster.node(i)
            cluster.wait_for(len(cluster.nodes), cluster.nodes[i])
    made = [(e["task"], e["stage"]) for e in events(folder) if e["kind"] == "stage"]
    return {
        "fault": fault,
        "what": told,
        "ended well": status == 0,
        "commands": commands,
        "same bits": status == 0 and sums(folder) == reference,
        "stages": len(set(made)),
        "stages computed again": len(made) - len(set(made)),
        "seconds": seconds,
    }


def bits(work: Path) -> dict[str, Any]:
    """The same returns.csv from one process and from three nodes."""
    words = ["reproduce", "spaceship", "--preset", "smoke", "--quiet"]
    cluster = Cluster(work)
    cluster.start()
    try:
        seconds = {}
        for name, more in (("serial", []), ("ray", ["--executor", "ray", "--address", f"127.0.0.1:{PORT}"])):
            began = time.monotonic()
            status = pdvf([*words, "--out", str(work / name), *more], cluster.environment, work / f"{name}.log").wait()
            seconds[name] = round(time.monotonic() - began)
            if status:
                raise SystemExit(f"{name} ended with {status}: see {work / name}.log")
        found = [(work / name / "spaceship" / "returns.csv").read_bytes() for name in seconds]
        nodes = list((work / "ray" / "spaceship" / "logs").glob("*.log"))
        return {"rows": found[0].count(b"\n") - 1, "same bytes": found[0] == found[1], "tasks": len(nodes)} | {
            f"seconds {name}": value for name, value in seconds.items()
        }
    finally:
        cluster.stop()


def write(name: str, **value: Any) -> None:
    """Adds a part to the file, and brings the table of faults up to date."""
    data = json.loads(OUT.read_text()) if OUT.is_file() else {}
    data[name] = {"measured": describe_environment(f"python {shlex.join(sys.argv)}"), **value}
    data["benchmarks"] = [row(fault, data[fault]["repetitions"]) for fault in FAULTS if fault in data]
    OUT.write_text(json.dumps(data, indent=2) + "\n")
    print(name, json.dumps(value), flush=True)


def row(fault: str, repetitions: list[dict[str, Any]]) -> dict[str, Any]:
    """All repetitions of a fault in a line."""
    column = {name: [each[name] for each in repetitions] for name in repetitions[0]}
    return {
        "fault": fault,
        "what": column["what"][0],
        "times": len(repetitions),
        "ended well": sum(column["ended well"]),
        "same bits": sum(column["same bits"]),
        "commands, at most": max(column["commands"]),
        "stages": max(column["stages"]),
        "made again, mean": statistics.fmean(column["stages computed again"]),
        "made again, at most": max(column["stages computed again"]),
        "s, median": round(statistics.median(column["seconds"])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", action="store_true")
    parser.add_argument("--faults", nargs="*", default=[], choices=FAULTS)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--port", type=int, default=PORT)
    given = parser.parse_args()
    globals()["PORT"] = given.port
    work = Path(tempfile.mkdtemp(prefix="pdvf-cluster-"))
    print(f"work folder: {work}", flush=True)
    if given.bits:
        write("bits", **bits(work))
    if given.faults:
        out = str(work / "reference")
        for words in ([*WORDS, "--out", out], ["train", out, "--quiet"]):
            if pdvf(words, dict(os.environ), work / "reference.log").wait():
                raise SystemExit(f"the reference failed: see {work}/reference.log")
        reference = sums(work / "reference")
        for fault in given.faults:
            done = list(json.loads(OUT.read_text()).get(fault, {}).get("repetitions", [])) if OUT.is_file() else []
            if len(done) >= given.times:
                continue
            with prepared(fault, work / fault) as (cluster, store):
                for i in range(len(done), given.times):
                    done.append(one(fault, f"{fault}-{i}", work / fault, cluster, store, reference))
                    write(fault, repetitions=done)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
