"""What one run learnt is where the next one begins. Run it twice with the same folder.

    python examples/profile_reuse.py /tmp/profiles

Prints on a GPU, the first time:
    learning: DISCOVERY
    after 4 forwards: INFERENCE
    saved

and the second time, in a new process:
    from the profile: INFERENCE before the first forward
    the same answer: True

Prints without a GPU:
    learning: DISCOVERY
    after 4 forwards: INFERENCE
    nothing is offloaded, nothing is saved
"""

import argparse
import tempfile
from pathlib import Path

import flextensor as ft
import torch
from torch import nn

HAS_GPU = torch.cuda.is_available()
WIDTH = 4096 if HAS_GPU else 16


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8))).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(tempfile.gettempdir()) / "ft-profiles")
    folder = parser.parse_args().folder
    config = ft.OffloadConfig(enabled=HAS_GPU, include_patterns=["class:Linear"], profiling_iters=3)
    x = torch.ones(1, WIDTH, device="cuda" if HAS_GPU else "cpu")
    manager = ft.get_offload_manager()
    with torch.no_grad():
        if HAS_GPU and (folder / "profile.json").is_file():
            model = ft.offload_from_profile(build(), folder, config)
            print(f"from the profile: {manager.phase.name} before the first forward")
            print("the same answer:", torch.equal(model(x).cpu(), torch.load(folder / "answer.pt")))
            return
        model = ft.offload(build(), config)
        print(f"learning: {manager.phase.name}")
        for _ in range(manager.iters_before_inference):
            answer = model(x)
        print(f"after {manager.iters_before_inference} forwards: {manager.phase.name}")
        if not HAS_GPU:
            print("nothing is offloaded, nothing is saved")
            return
        ft.save_profile(folder)
        torch.save(answer.cpu(), folder / "answer.pt")
        print("saved")


if __name__ == "__main__":
    main()
