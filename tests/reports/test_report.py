import base64
import csv
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from matplotlib.text import Text
from PIL import Image

from fake_run import LEVEL, make_run
from pdvf import __version__
from pdvf.experiment.cost import environment_steps
from pdvf.experiment.errors import RunError
from pdvf.experiment.store import RunStore
from pdvf.methods import METHODS as AGENTS
from pdvf.reports import bars, figures, films, paper, report, tables, write_report
from pdvf.reports.data import read_run
from pdvf.reports.page import PIXELS_PER_INCH, SMALLEST_LETTERS, Shown, render
from pdvf.reports.statistics import difference, probability_of_improvement, summarise
from pdvf.reports.style import METHODS, SMALL, circle_colours, png

NAMES = [entry.name for entry in report.ENTRIES if entry.name != "strips"]
VOID = {"meta", "img", "br", "input"}
STYLE = (Path(report.__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
EMPTY = dict.fromkeys(("value_actual", "value_predicted"), np.zeros(0, np.float32))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunStore:
    store = make_run(tmp_path_factory.mktemp("report") / "run")
    assert write_report(store) == store.folder / "report.html"
    return store


@pytest.fixture
def store(tmp_path) -> RunStore:
    return make_run(tmp_path / "run")


@pytest.fixture
def no_tsne(monkeypatch) -> None:
    """For tests of something else: t-SNE and films are what takes time."""
    monkeypatch.setattr("pdvf.reports.embedded.plane", lambda points: np.asarray(points)[:, :2])
    monkeypatch.setattr("pdvf.reports.films.film_episodes", lambda store, run: [])


def page(store: RunStore) -> str:
    return (store.folder / "report.html").read_text(encoding="utf-8")


def plain(html: str) -> str:
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"base64,[^\"]+", "", html))))


def change(store: RunStore, **arrays: np.ndarray | None) -> None:
    """Saves the evaluation again with other arrays; None leaves one out."""
    old = safetensors.numpy.load_file(store.folder / "artefacts" / "evaluation.safetensors")
    store.save("evaluation", {name: array for name, array in {**old, **arrays}.items() if array is not None})


class Checker(HTMLParser):
    """Tags that are open, and every address on the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.pictures: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag == "img":
            self.pictures.append(dict(attrs))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)  # of an SVG

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_and_needs_no_network(finished):
    checker = Checker()
    checker.feed(page(finished))
    assert not checker.open
    assert not checker.tags & {"script", "link", "iframe"}
    kinds = [address.partition(";base64,")[0] for address in checker.addresses]
    assert kinds.count("data:image/png") == len(NAMES) - 1  # embeddings are an SVG
    assert set(kinds) - {"data:image/png"} in ({"data:video/mp4"}, {"data:image/gif"})
    assert len(kinds) - kinds.count("data:image/png") == 5  # films of the test environments
    assert not re.search(r"https?://|@import|url\(", page(finished))


def test_every_figure_is_there_twice_and_no_blank(finished):
    inlined = [base64.b64decode(found) for found in re.findall(r"base64,([^\"]+)\"", page(finished))]
    files = sorted((finished.folder / "figures").glob("*.png"))
    assert [file.stem for file in files] == sorted(NAMES)
    for file in files:
        data = file.read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) > 15_000
        assert data in inlined or file.stem == "embeddings"


def test_every_picture_has_words_and_letters_that_can_be_read(finished):
    checker = Checker()
    checker.feed(page(finished))
    for picture in checker.pictures:
        assert picture["alt"]
        width, least = (float(x) for x in re.findall(r"width:(\d+)px", picture["style"] or ""))
        assert SMALL / 72 * PIXELS_PER_INCH * least / width >= SMALLEST_LETTERS >= 9
    sizes = [float(x) * 16 for x in re.findall(r"font(?:-size)?: ([\d.]+)r?em", STYLE)]
    sizes += [float(x) for x in re.findall(r"font(?:-size)?: ([\d.]+)px", STYLE)]
    assert len(sizes) > 8
    assert min(sizes) * 0.82 >= 9  # small print is so much smaller than what is around it
    assert "small { color: var(--muted); font-weight: 400; font-size: 0.82em; }" in STYLE


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_words_stand_out_from_the_page(theme):
    colours = dict(re.findall(r"--(\w+): (#\w{6});", re.findall(r":root \{(.*?)\}", STYLE)[theme]))

    def light(name: str) -> float:
        parts = [int(colours[name][i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    for words, ground in (("ink", "page"), ("muted", "page"), ("accent", "page"), ("ink", "tint")):
        bright, dim = sorted((light(words), light(ground)), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, (words, ground)


def test_tables_and_pictures_scroll_in_their_box(finished):
    assert page(finished).count("<table") == page(finished).count('<div class="wide"><table') > 2
    assert re.search(r"^\.wide \{ overflow-x: auto;", STYLE, re.MULTILINE)
    assert re.search(r"^\.card \{.* overflow-x: auto;", STYLE, re.MULTILINE)


def test_a_point_says_what_it_is(finished):
    run = read_run(finished)
    text = plain(page(finished))
    policy, environment = (int(run.evaluation[f"tsne_{name}"][30]) for name in ("policy", "environment"))
    returned = run.evaluation["transfer"][policy - 1, 0, environment - 1]
    assert text.count(f"environment {environment}, policy of {policy}, return {returned:.3f}") == 2  # z_d and z_pi


def test_a_run_without_ours(store):
    """What `pdvf compare --methods nn` leaves of the words and columns that speak of PD-VF."""
    rows = (store.folder / "returns.csv").read_text().splitlines()
    store.write_text("returns.csv", "\n".join([rows[0], *(row for row in rows if ",nn," in row)]) + "\n")
    text = plain(write_report(store).read_text(encoding="utf-8"))
    assert "Spaceship" in text
    assert not [words for words in ("PD-VF on", "minus it", "peek") if words in text]


@pytest.mark.parametrize("better", ["pd-vf", "pd-vf-plus"])
def test_the_title_names_the_method_of_the_verdict(tmp_path, better):
    run = read_run(make_run(tmp_path / "run", ("pd-vf", "pd-vf-plus", "nn")))
    gain = {better: 5.0}
    groups = [g._replace(returns=g.returns + gain.get(g.method, 0.0)) for g in run.groups]
    html = render(replace(run, groups=tuple(g._replace(summary=summarise(g.returns)) for g in groups)), [], [])
    name = AGENTS[better].look.label.rstrip("*")
    assert f"<h1>{name} on Spaceship</h1>" in html
    assert f"{name} returns 5." in html


def test_strips_show_the_page_between_the_pictures(store):
    """On a dark page a white frame would stand out; words have a ground of their own."""
    seen = films.FilmedEpisode(16, "pd-vf", 0.5, (0, 1, 2), 3, np.full((3, 24, 32, 3), 90, np.uint8))
    run = replace(read_run(store), filmed=[seen])
    vars(run)["made"] = None  # a family that draws itself has films alone
    figure = films.strips(run)
    assert figure is not None
    picture = Image.open(io.BytesIO(png(figure)))
    clear = np.asarray(picture)[..., 3] == 0
    assert clear[0].all()
    assert clear.mean() > 0.4  # three of six places are empty
    words = [text for text in figure.findobj(Text) if text.get_text()]
    assert len(words) == 5
    assert all(text.get_bbox_patch() is not None for text in words)


def test_numbers_on_the_page_are_those_of_the_run(finished):
    groups = {(g.split, g.method, g.protocol): g for g in read_run(finished).groups}
    text = plain(page(finished))
    for (split, _, _), group in groups.items():
        if split == "test":
            assert f"{group.returns.mean():.3f} [" in text
    # The paper's means as in its notes at a glance: PD-VF .953, PPOenv .903, NN .580.
    assert "the paper's is 0.953" in text
    assert "0.903" in text
    assert "0.580" in text
    assert "peek" in text


def test_summary_has_the_numbers_of_every_method(tmp_path):
    store = make_run(tmp_path, methods=("pd-vf", "nn", "pd-vf-plus"))
    run = read_run(store)
    rows = {(r["split"], r["method"], r["protocol"]): r for r in csv.DictReader(io.StringIO(tables.summary(run)))}
    assert set(rows) == {(g.split, g.method, g.protocol) for g in run.groups}
    means = {g.method: g.returns.mean() for g in run.select("test", "honest")}
    nearest = rows["test", "nn", "honest"]
    assert float(nearest["mean"]) == pytest.approx(means["nn"], rel=1e-5)
    assert float(nearest["mean_low"]) < means["nn"] < float(nearest["mean_high"])
    for ours in ("pd-vf", "pd-vf-plus"):
        assert float(nearest[f"{ours}_minus_it"]) == pytest.approx(means[ours] - means["nn"], rel=1e-4)
        assert rows["test", ours, "honest"][f"{ours}_minus_it"] == ""
    assert float(nearest["paper_mean"]) == pytest.approx(0.58, abs=0.02)


def test_methods_of_the_same_models_are_paired(tmp_path):
    run = read_run(make_run(tmp_path, methods=("pd-vf", "nn", "kmeans")))
    groups = {g.method: g.returns for g in run.select("test", "honest")}
    found = {line.group.method: line.apart["pd-vf"] for line in tables.lines(run) if line.group.method != "pd-vf"}
    assert found == {
        "nn": difference(groups["pd-vf"], groups["nn"], paired=True),
        "kmeans": difference(groups["pd-vf"], groups["kmeans"]),
    }
    assert found["nn"] != difference(groups["pd-vf"], groups["nn"])
    made_from_models = {"adapter", "initial_adapter", "dynamics"}
    assert all(made_from_models & set(AGENTS[name].needs) for name in AGENTS if tables.paired("pd-vf", name))


def test_recipe_is_on_the_page(finished):
    text = plain(page(finished))
    for fact in ("pdvf train spaceship", "jax 0.", "cpu", "ppo.steps", "3 000 000", "1 h 02 min", "8 min 33 s"):
        assert fact in text


def test_same_run_same_bytes(store, no_tsne):
    first = write_report(store).read_bytes()
    assert write_report(store).read_bytes() == first


def test_pyplot_stays_out():
    code = "import sys, pdvf.reports; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_before_evaluation(store):
    (store.folder / "returns.csv").unlink()
    with pytest.raises(RunError, match=r"run `pdvf evaluate .*run` first"):
        write_report(store)
    assert not (store.folder / "report.html").exists()


def test_without_evaluation(store):
    """A comparison of methods that need no phase of PD-VF."""
    shutil.rmtree(store.folder / "artefacts")
    path = store.folder / "returns.csv"
    path.write_text(path.read_text().replace("pd-vf", "pd-vf-plus"))
    write_report(store, {"pd-vf-plus": 77})
    said = plain(page(store))
    assert "15 training and 5 test environments" in said
    assert " 77 " in said
    assert "value function W" not in said
    assert "Not shown, since the run has no data for it: Paths in the test environments; Embeddings" in said
    drawn = {path.stem for path in (store.folder / "figures").glob("*.png")}
    assert drawn == {"test_returns", "train_returns"}


def test_curves_of_the_upper_bound(store):
    """Since PPOenv's policies are a task of their own, their curves are in an artefact of their own."""
    every = read_run(store).curves()
    assert every is not None
    split = {"policies": every[:15], "upper_bound": every[15:]}
    for name, rows in split.items():
        store.save(name, {"x": np.zeros(1)}, info={"history": [{"curve": rows[:, :60]}, {"curve": rows[:, 60:]}]})
    np.testing.assert_array_equal(read_run(store).curves(), every)
    assert figures.learning_curves(read_run(store)) is not None
    store.remove("upper_bound")
    np.testing.assert_array_equal(read_run(store).curves(), every[:15])
    assert figures.learning_curves(read_run(store)) is not None


def test_altered_evaluation(store):
    file = store.folder / "artefacts" / "evaluation.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(RunError, match="truncated or altered"):
        write_report(store)


def test_evaluation_without_environments(store):
    change(store, environments=None)
    with pytest.raises(RunError, match="has no array 'environments'"):
        write_report(store)


@pytest.mark.parametrize(
    ("change_text", "message"),
    [
        (lambda text: "", "has no column 'family'"),
        (lambda text: text.replace("protocol", "rules", 1), "has no column 'protocol'"),
        (lambda text: text.splitlines()[0] + "\n", "no returns in test environments"),
        (lambda text: text.rsplit(",", 1)[0] + ",nan\n", "expected a finite number"),
        (lambda text: text.rsplit(",", 1)[0] + ",much\n", "cannot be read"),
        (lambda text: text.rsplit("\n", 3)[0] + "\n", "is incomplete for method 'nn', test"),
        (lambda text: text + text.splitlines()[-1] + "\n", "are there twice"),
    ],
)
def test_broken_returns(store, change_text, message):
    path = store.folder / "returns.csv"
    path.write_text(change_text(path.read_text().replace("\r\n", "\n")))
    with pytest.raises(RunError, match=message) as caught:
        write_report(store)
    assert "pdvf evaluate" in str(caught.value)


def test_what_is_absent_is_left_out_and_named(store):
    store.write_bytes("figures/transfer.png", b"of an earlier report")
    change(store, tsne_z_pi=None, transfer=None, **EMPTY, path_valid=None)
    for name in ("policies", "dynamics", "policy", "adapter"):
        store.remove(name)
    (store.folder / "environment.json").unlink()
    write_report(store)
    assert sorted(file.stem for file in (store.folder / "figures").iterdir()) == [
        "test_returns",
        "train_returns",
    ]
    text = plain(page(store))
    assert "Not shown, since the run has no data for it" in text
    for entry in report.ENTRIES:
        assert (entry.title in text.split("Not shown", 1)[1]) == (
            entry.name not in ("test_returns", "train_returns", "strips")
        )


def test_every_method_and_another_family(tmp_path, no_tsne):
    methods = ("pd-vf", "ppo-env", "nn", "kmeans", "maml", "rl2")
    store = make_run(tmp_path / "run", methods, seeds=1, episodes=1, family="hovercraft")
    text = plain(write_report(store).read_text(encoding="utf-8"))
    assert "PD-VF on Hovercraft" in text
    assert "RL²" in text
    assert "one model and episode, so no interval" in text
    assert "nan" not in text.split()
    assert "the paper's is" not in text
    assert "paper" not in text.lower().split("how it was made")[0]
    assert "peek" not in text
    assert "form a circle" not in text
    assert not (store.folder / "figures" / "paths.png").exists()
    assert "The ship" not in text


def test_comparison_has_the_papers_figures_and_its_numbers(tmp_path, no_tsne):
    store = make_run(tmp_path / "run", tuple(LEVEL), seeds=2, episodes=2)
    text = plain(write_report(store).read_text(encoding="utf-8"))
    # As in the notes on the paper, to a unit of the last digit.
    notes = {"ppo-env": 0.903, "rl2": 0.915, "maml": 0.767, "ppo-dyn": 0.314, "ppo-all": 0.468, "kmeans": 0.744}
    for method, mean in (notes | {"no-agg-policy": 0.204, "no-agg-value": 0.052}).items():
        bars_of = paper.test_returns("spaceship")[method].values()
        exact = np.mean([bar.mean for bar in bars_of])
        assert exact == pytest.approx(mean, abs=0.0011)
        assert f"{exact:.3f}" in text
    groups = {g.method: g for g in read_run(store).select("test", "honest")}
    for method, group in groups.items():
        if method != "pd-vf":
            chance = probability_of_improvement(groups["pd-vf"].returns, group.returns)
            wide = f" [{100 * chance.low:.0f}, {100 * chance.high:.0f}]" if chance.low < chance.high else ""
            assert f"{100 * chance.value:.0f} %{wide}" in text
    assert "[100, 100]" not in text
    assert "Oracle*" in text
    assert "not in the paper" in text


def test_all_methods_are_in_one_picture_the_best_first(tmp_path):
    run = read_run(make_run(tmp_path / "run", (*LEVEL,), seeds=1, episodes=1))
    drawn = tables.bars(run)
    means = {run.label(g.method): g.summary.mean.value for g in run.select("test", "honest")}
    assert [bar.label for bar in drawn] == sorted(means, key=lambda label: -means[label])
    assert len(drawn) == len(METHODS)
    longest = max(means.values())
    for bar in drawn:
        assert bar.begin == 0
        assert bar.width == pytest.approx(100 * means[bar.label] / longest, abs=2)


def test_bars_of_negative_returns_end_at_zero(store):
    run = read_run(store)
    groups = tuple(g._replace(returns=g.returns - 2, summary=summarise(g.returns - 2)) for g in run.groups)
    drawn = tables.bars(replace(run, groups=groups))
    assert all(bar.begin + bar.width == pytest.approx(100) for bar in drawn)
    assert drawn[0].width < drawn[-1].width


def test_constant_values(store):
    constant = np.full(50, 0.5, np.float32)
    change(store, value_predicted=constant, value_actual=constant, predicted=None)
    (values,) = (entry for entry in report.ENTRIES if entry.name == "values")
    run = read_run(store)
    figure = values.draw(run)
    assert figure is not None
    data = png(figure)
    assert len(data) > 10_000
    assert "Spearman" not in render(run, [Shown("values", values.title, data)], [])


def test_reads_histories(store):
    run = read_run(store)
    curves = run.curves()
    assert curves is not None
    assert curves.shape == (20, 8 * 23)
    assert np.isnan(curves[:, :2]).all()
    losses = run.history("adapter", "loss")
    decoder = run.history("adapter", "decoder_loss")
    assert losses is not None
    assert decoder is not None
    assert (losses.shape, decoder.shape) == ((21, 3), (3, 3))
    assert run.history("adapter", "nothing") is None
    assert list(run.seconds().values()) == [3723.0, 9.3, 340.0, 512.8, 21.4]


def test_papers_numbers():
    spaceship = paper.test_returns("spaceship")
    assert set(spaceship) == set(METHODS) - {"oracle", "rma", "best-single", "pd-vf-plus"}
    assert spaceship["nn"][17] == (0.2593, 0.1519)
    assert np.mean([bar.mean for bar in paper.test_returns("ant_wind")["pd-vf"].values()]) == pytest.approx(
        421.9, abs=0.1
    )
    swimmer = paper.transfer("swimmer")
    assert swimmer is not None
    assert swimmer.shape == (20, 20)
    assert swimmer[1, 10] == -6.11  # the policy of environment 2 in environment 11
    assert paper.transfer("ant-legs") is None
    assert paper.test_returns("hovercraft") == {}


def test_shipped_numbers_are_the_shared_ones():
    shared = Path(__file__).parents[3] / "shared" / "paper"
    if not shared.is_dir():
        pytest.skip("no shared folder beside this checkout")
    shipped = Path(paper.__file__).parent / "paper"
    assert {f.name: f.read_bytes() for f in shipped.glob("*.csv")} == {
        f.name: f.read_bytes() for f in shared.glob("*.csv")
    }


def test_colours_close_the_circle():
    colours = circle_colours(20)
    steps = np.linalg.norm(np.diff(colours, axis=0, append=colours[:1]), axis=1)
    assert colours.min() >= 0
    assert colours.max() <= 1
    assert steps.max() < 3 * np.median(steps)
    assert colours.min(axis=1).max() < 0.8  # none is lost on white paper


# What a stranger may have put in


SCRIPT = "<script>alert(1)</script>"


def edit(path: Path, change) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_every_name_is_escaped(tmp_path, no_tsne):
    store = make_run(tmp_path / SCRIPT.replace("/", "_"), methods=("pd-vf", "nn"), family=SCRIPT, seeds=1, episodes=1)
    path = store.folder / "returns.csv"
    path.write_text(path.read_text().replace(",nn,", f",{SCRIPT},").replace(",peek,", f",{SCRIPT},"))
    edit(store.folder / "environment.json", lambda data: data["versions"].update({SCRIPT: SCRIPT}))
    edit(store.folder / "environment.json", lambda data: data["device"].update(kind=SCRIPT))
    edit(store.folder / "environment.json", lambda data: data.update(command=SCRIPT, platform=SCRIPT, commit=SCRIPT))
    edit(
        store.folder / "artefacts" / "policies.json",
        lambda data: data["versions"].update({SCRIPT: SCRIPT, "jax": SCRIPT}),
    )
    text = write_report(store).read_text(encoding="utf-8")
    assert "<script" not in text.lower()
    assert text.count("&lt;script&gt;") > 10
    Checker().feed(text)


def test_context_names_are_escaped(store):
    run = read_run(store)

    class Named:
        name, context_names = SCRIPT, (SCRIPT, SCRIPT)

    vars(run)["made"] = Named()
    run.evaluation["contexts"] = np.zeros((20, 2), np.float32)  # pyright: ignore
    html = render(run, [], [])
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 40


def test_a_method_named_like_mathematics(store):
    path = store.folder / "returns.csv"
    path.write_text(path.read_text().replace(",nn,", r",$\oops$,"))
    figure = bars.by_environment(read_run(store), "test")
    assert figure is not None
    png(figure)


@pytest.mark.parametrize(
    "change_of",
    [
        {"environments": np.zeros((20, 1), np.int32)},
        {"environments": np.arange(20.0, dtype=np.float32)},
        {"train_count": np.array([15], np.int32)},
        {"train_count": np.array(20, np.int32)},
        {"contexts": np.zeros((3, 1), np.float32)},
        {"returns": np.full((3, 20, 4), np.inf, np.float32)},
        {"returns": np.zeros((3, 20), np.float32)},
        {"path_valid": np.zeros((3, 20, 50), np.float32)},
        {"path_next_observation": np.zeros((3, 20, 7, 2), np.float32)},
        {"transfer": np.zeros((20, 3, 19), np.float32)},
        {"tsne_policy": np.full(400, 99, np.int32)},
        {"tsne_z_d": np.full((400, 8), 1e20, np.float32)},
        {"value_actual": np.full(5000, np.nan, np.float32)},
        {"value_actual": np.zeros(4999, np.float32)},
    ],
    ids=lambda change_of: "-".join(change_of),
)
def test_an_evaluation_with_odd_arrays(store, change_of):
    change(store, **change_of)
    (name,) = change_of
    words = "environments for training|" if name == "train_count" else ""
    with pytest.raises(RunError, match=rf"'evaluation'.*({words}'{name}').*pdvf evaluate"):
        read_run(store)


@pytest.mark.parametrize(
    "history",
    [
        ["x"],
        [{"curve": "x"}],
        [{"curve": [1, 2]}],
        [{"curve": [[1], [1, 2]]}],
        [{"curve": [[1e40] * 2] * 20}],
        [{"curve": [[1]] * 20}, {"curve": [[1]] * 19}],
        [{"curve": {"a": 1}}],
    ],
)
def test_an_odd_history(store, history):
    edit(store.folder / "artefacts" / "policies.json", lambda data: data["info"].update(history=history))
    with pytest.raises(RunError, match="history of artefact 'policies'"):
        read_run(store).curves()


@pytest.mark.parametrize("history", [["x"], [3], [{"steps": "x"}], [{"steps": 1e308}] * 2])
def test_steps_that_are_none_do_not_count(store, history):
    store.save("agent-pd-vf", {"x": np.zeros(1)}, inputs=("policies",))
    edit(store.folder / "artefacts" / "policies.json", lambda data: data["info"].update(history=history))
    assert environment_steps(store) == {}


@pytest.mark.parametrize("change_of", [{"device": 3}, {"device": ["cpu"]}, {"versions": "1"}])
def test_an_odd_environment(store, change_of):
    edit(store.folder / "environment.json", lambda data: data.update(change_of))
    with pytest.raises(RunError, match=r"environment\.json: .*delete it, the report does without"):
        read_run(store)


def test_a_run_that_was_resumed_with_another_version_says_so(store):
    assert "Not all artefacts" not in render(read_run(store), [], [])
    edit(store.folder / "artefacts" / "policies.json", lambda data: data["versions"].update(pdvf="0.1.0"))
    edit(store.folder / "artefacts" / "evaluation.json", lambda data: data["device"].update(count=7))
    text = plain(render(read_run(store), [], []))
    (sentence,) = re.findall(r"Not all artefacts were made with the same versions and devices: (.*?)\. ", text)
    assert f"pdvf {__version__} (adapter, dynamics, evaluation, policy, trajectories)" in sentence
    assert "pdvf 0.1.0 (policies)" in sentence
    assert "7 × cpu (cpu) (evaluation)" in sentence
    assert "jax" not in sentence
