"""Run gallery pages and save their plots: python docs/gallery/build.py [folder]"""

import contextlib
import io
import runpy
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
PAGES = sorted(page for page in HERE.glob("*.py") if page.name != "build.py")


def run(page: Path, folder: Path) -> tuple[list[Path], str]:
    """Run one page; return its plots and what it printed."""
    plt.close("all")
    printed = io.StringIO()
    show, plt.show = plt.show, lambda: None
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(page), run_name="__main__")
    finally:
        plt.show = show
    folder.mkdir(parents=True, exist_ok=True)
    pictures = []
    for number in plt.get_fignums():
        picture = folder / f"{page.stem}{'' if number == 1 else f'_{number}'}.png"
        plt.figure(number).savefig(picture, dpi=100)
        pictures.append(picture)
    plt.close("all")
    return pictures, printed.getvalue()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "images"
    for page in PAGES:
        pictures, text = run(page, target)
        print(page.name, *pictures, sep="\n  ")
        print(text, end="")
