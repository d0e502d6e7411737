"""The worker process for background jobs: ``python -m qa_cluster.cluster.provision.jobs_worker FOLDER [QUEUE]``.

The process runs one job after the other, without forking, and ends on SIGTERM. FOLDER only identifies the process in
the list of processes. The settings come from the environment.
"""

from __future__ import annotations

import logging
import sys

from rq import SimpleWorker
from rq.serializers import JSONSerializer

from qa_cluster.config import load

from .jobs import QUEUE, connection, queue


def main() -> None:
    """Run the jobs of the queue until SIGTERM."""
    settings = load().settings
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with connection(settings) as client:
        # The wait for a job takes longer than the timeout of ordinary replies.
        client.connection_pool.connection_kwargs["socket_timeout"] = None
        worker = SimpleWorker([queue(client, *(sys.argv[2:] or [QUEUE]))], connection=client, serializer=JSONSerializer)
        worker.work(logging_level=settings.log_level.upper())


if __name__ == "__main__":
    main()
