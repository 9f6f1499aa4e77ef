"""A server as gunicorn runs one: forks its workers before anybody touches the GPU, then each builds a model and answers.

Each worker prints one JSON line with the digest of its outputs. Exit code: how many workers failed.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import lab as room
import torch

WORKERS = 2


def work(worker: int) -> None:
    room.settle()
    lab = room.Lab(100 + worker, "cuda")
    model = lab.build(lambda: room.Stack(4))
    digest = hashlib.sha256()
    for _ in range(room.FORWARDS):
        with torch.no_grad():
            output = model(lab.randn(8, room.WIDTH))
        digest.update(output.cpu().view(torch.uint8).numpy())
    line = json.dumps({"worker": worker, "digest": digest.hexdigest()}) + "\n"
    os.write(1, line.encode())


def main() -> int:
    children = []
    for worker in range(WORKERS):
        child = os.fork()
        if child == 0:
            failed = 1
            try:
                work(worker)
                failed = 0
            finally:
                sys.stderr.flush()
                os._exit(failed)
        children.append(child)
    ended = [os.waitpid(child, 0)[1] for child in children]
    return sum(os.waitstatus_to_exitcode(status) != 0 for status in ended)


if __name__ == "__main__":
    sys.exit(main())
