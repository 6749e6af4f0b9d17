"""`pdvf diagnose`."""

from __future__ import annotations

from dataclasses import dataclass

from pdvf.cli.phases import OfRun


@dataclass(frozen=True)
class Diagnose(OfRun):
    """What holds a trained PD-VF back, in five numbers; and whether the run's methods adapt."""

    model: int = 0
    """Which of the run's models, from 0."""

    def main(self, said: str) -> int:
        """Writes RUN/diagnosis.json and RUN/figures/diagnosis.png."""
        del said
        import jax

        from pdvf.api import open_run
        from pdvf.experiment.adaptation import ADAPTATION
        from pdvf.experiment.diagnosis import as_data, effort, findings, measure, table
        from pdvf.experiment.executors import EXECUTORS
        from pdvf.experiment.files import to_json
        from pdvf.experiment.plan import plan
        from pdvf.experiment.progress import ignore
        from pdvf.methods import METHODS, agent_artefact
        from pdvf.paper import pipeline
        from pdvf.reports import adaptation, diagnosis
        from pdvf.reports.style import png

        run = open_run(self.run, self.family)
        store, problem, adapter = run.store, run.problem, run.model(self.model)
        policies = store.load("policies", pipeline.artefact_shapes(problem)["policies"])
        print(f"{self.run}, model {self.model}: plays {effort(problem, policies)}", flush=True)
        measured = measure(problem, policies, adapter, jax.random.key(problem.config.seed))
        family = problem.engine.family
        found = findings(family, problem.contexts, measured)
        figure = diagnosis.draw(family.train(problem.config.seed).numbers, measured._asdict())
        with store.lock():
            store.write_bytes("diagnosis.json", to_json(as_data(found, measured)))
            store.write_bytes("figures/diagnosis.png", png(figure))
        print(table(found, measured))
        print(f"  picture: {store.folder / 'figures' / 'diagnosis.png'}")
        there = [m for m in METHODS.values() if m.adapting and store.has(agent_artefact(m.name))]
        tasks = [task for task in plan(store, problem, there, ()) if task.name.startswith(ADAPTATION)]
        EXECUTORS["serial"](tasks, ignore)
        for each in adaptation.read(store):
            print(f"  {each.sentence()}")
        return 0
