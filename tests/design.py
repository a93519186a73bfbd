"""The examples of docs/design, as modules: what they register is held to the laws like everything else."""

import re
import sys
import types
from pathlib import Path

PAGES = Path(__file__).parents[1] / "docs" / "design"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def example(page: str) -> types.ModuleType:
    """The first block of code of a page; under sixty lines, as promised."""
    name = f"design_{page}"
    if name not in sys.modules:
        code = FENCE.search((PAGES / f"{page}.md").read_text()).group(1)
        assert len(code.splitlines()) < 60, f"{page}.md: an example stays under sixty lines"
        module = types.ModuleType(name)
        sys.modules[name] = module
        exec(compile(code, f"{page}.md", "exec"), vars(module))
    return sys.modules[name]
