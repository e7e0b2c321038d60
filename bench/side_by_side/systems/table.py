"""The systems that are measured, by name."""
from .beanstalkd import Beanstalkd
from .bubblewrap import Bubblewrap, BubblewrapTrue
from .bullmq import BullMQ, BullMQSandboxed
from .celery_system import Celery, CeleryFresh, CeleryThreads
from .ours import Mycojobs, MycojobsNewSandbox, MycojobsWarm
from .rq_system import RQ

# name: (class, default number of slots, no-op jobs of a drain, title)
# mycojobs-again: in the workload `recovery`, the killed agent is started again. Otherwise another worker continues.
SYSTEMS = {
    "mycojobs": (Mycojobs, 8, 5000, "mycojobs"),
    "mycojobs-new-sandbox": (MycojobsNewSandbox, 8, 1500, "mycojobs, reused_runs = 1"),
    "mycojobs-warm": (MycojobsWarm, 8, 5000, "mycojobs, warm script"),
    "mycojobs-again": (Mycojobs, 8, 0, "mycojobs, the same agent started again"),
    "celery": (Celery, 2, 3000, "Celery prefork, 2 processes"),
    "celery-fresh": (CeleryFresh, 2, 20, "Celery, a fresh process for each task"),
    "celery-threads": (CeleryThreads, 2, 1000, "Celery threads"),
    "rq": (RQ, 2, 300, "RQ, a fork for each job, 2 workers"),
    "bullmq": (BullMQ, 2, 10000, "BullMQ in process"),
    "bullmq-2": (BullMQ, 2, 10000, "BullMQ in process, concurrency 2"),
    "bullmq-50": (BullMQ, 50, 20000, "BullMQ in process, concurrency 50"),
    "bullmq-sandboxed": (BullMQSandboxed, 2, 5000, "BullMQ sandboxed processor, 2 processes"),
    "beanstalkd": (Beanstalkd, 2, 20000, "beanstalkd + 2 bare Python loops"),
    "bwrap": (Bubblewrap, 2, 200, "bubblewrap python3 -I -S -c pass, 2 at a time"),
    "bwrap-nothing": (BubblewrapTrue, 2, 300, "bubblewrap true, 2 at a time"),
}
