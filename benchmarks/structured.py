"""Kernels beyond vectors: speed beside grakel and strkernels, accuracy, and a mixed table. One run of four scripts.

python benchmarks/structured.py [--write]
"""

import subprocess
import sys

from machine import HERE

SCRIPTS = ("structured_graphs.py", "structured_strings.py", "structured_accuracy.py", "mixed_table.py")


def main():
    for script in SCRIPTS:
        subprocess.run([sys.executable, HERE / script, *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
