"""The comparison of mycojobs with other job systems, which `./dev bench` runs.

plan.py               the workloads with their systems, and the sizes of quick and full runs
run.py                runs the workloads, and collects the rows of the results
system_factory.py     starts the systems, each with its own Redis and folder
systems/              one file for each system, with the interface System of systems/base.py; table.py lists the systems
workloads/            shared.py: workloads on a running system; own.py: workloads that start their own systems; alone.py:
                      workloads of mycojobs alone
delivery.py           checks that each job ran once
results.py            reads and writes the results, which are JSON files
page.py, sections.py, targets.py, plots.py, svg.py, tables.py      write the report
jobs.py, celery_app.py, beanstalk_loop.py, bullmq/                 run in the workers and clients of the other systems

A new system needs a subclass of System and a line in systems/table.py. A new workload needs a function and a line in
plan.py.
"""
