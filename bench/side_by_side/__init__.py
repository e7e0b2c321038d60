"""mycojobs beside its peers: what `./dev bench` runs.

plan.py             the table: workloads x systems, sizes
run.py, stage.py    systems in turn, round after round; each with a Redis and a folder of its own
systems/            one file a system, all with the face of systems/base.py; table.py names them
workloads/          what is measured: on a system that is up (shared), on systems of its own (own), of ours alone (alone)
delivery.py         exact delivery: every id once
results.py          rows of figures, kept as JSON
page.py, sections.py, targets.py, plots.py, svg.py, tables.py      from rows to the page
jobs.py, celery_app.py, beanstalk_loop.py, bullmq/                 what runs in the peers' workers and clients

A new system is a class with the face of System and a line in systems/table.py; a new workload a function and a line in plan.py.
"""
