"""What the documents show is what happens: code blocks run, printed text is what is printed, gallery pages draw."""

import contextlib
import importlib.util
import io
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from mercer.core.registry import STORABLE
from mercer.inference.base import INFERENCES
from mercer.solvers.base import SOLVERS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_code_blocks_run_and_print_what_the_text_says(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some of them write files
    for registry in (SOLVERS, INFERENCES, STORABLE):  # what a page registers ends with it
        for name in registry:
            monkeypatch.setitem(registry, name, registry[name])
    known = [set(registry) for registry in (SOLVERS, INFERENCES, STORABLE)]
    printed = ""
    names: dict = {}
    for language, body in FENCE.findall(document.read_text()):
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(body, str(document), "exec"), names)
            printed = out.getvalue()
        elif language == "text":
            assert _rounded(printed) == _rounded(body)
    for registry, before in zip((SOLVERS, INFERENCES, STORABLE), known, strict=True):
        for name in set(registry) - before:
            del registry[name]


def _rounded(text):
    """Text with numbers to four digits, since the last ones depend on the machine's linear algebra."""
    return re.sub(r"-?\d+\.\d+(e-?\d+)?", lambda m: f"{float(m.group()):.3g}", text.strip())


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_commands_in_the_readme_exist():
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\w+)", readme, re.MULTILINE)
    assert set(targets) == {"demo", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r'"\.\[(\w+)\]"', readme)) <= set(extras)


def _gallery():
    spec = importlib.util.spec_from_file_location("gallery_build", ROOT / "docs" / "gallery" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", _gallery().PAGES, ids=lambda p: p.stem)
def test_gallery_pages_run_and_draw(page, tmp_path):
    pictures, printed = _gallery().run(page, tmp_path)
    assert pictures
    assert all(picture.stat().st_size > 5000 for picture in pictures)
    if "proof" in page.stem:
        assert "6.21 from" in printed


def test_the_gallery_holds_the_figures_it_should():
    stems = {page.stem for page in _gallery().PAGES}
    for figure in ("6_1", "6_2", "6_3", "6_4", "6_5", "6_6", "6_7", "6_8", "6_9", "6_10", "6_11", "6_12"):
        assert any(stem.startswith(f"figure_{figure}_") for stem in stems)
    assert {"matern_samples", "periodic_samples", "a_kernel_and_its_proof"} <= stems
    assert {"prior_to_posterior", "three_lengthscales", "a_finite_basis_can_be_dangerous"} <= stems
    assert {"mauna_loa_decomposed", "one_answer_three_ways", "orthogonal_least_squares", "curved_classes"} <= stems
    assert {"four_inferences", "calibration_of_classes"} <= stems
    assert "universal_kriging_of_a_floodplain" in stems
    assert {"strings_with_a_motif", "graphs_of_molecules", "a_mixed_table"} <= stems
    assert {"a_mixture_and_few_labels", "sequences_with_hidden_states", "fisher_scores"} <= stems


def test_the_demonstration(tmp_path):
    command = shutil.which("mercer", path=str(Path(__import__("sys").executable).parent))
    done = subprocess.run([command, "demo", "--output", str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(r"95% intervals cover (8\d|9\d|100)%", done.stdout)  # of fourteen years not seen
    assert re.search(r"^s5 +0\.\d+", done.stdout, re.MULTILINE)  # of ten measurements
    assert (tmp_path / "demo.png").stat().st_size > 50_000
    assert "demo" in subprocess.run([command, "--help"], capture_output=True, text=True, timeout=60).stdout
