"""Run ``npufix diagnose`` with workers that SLURM or Kubernetes starts, and end them afterwards.

    python diagnose_on.py slurm --workers 32 --queue cpu -- /shared/cluster_dumps --source src
    python diagnose_on.py kubernetes --workers 32 --image registry/npufix:0.1 -- /shared/cluster_dumps
    python diagnose_on.py here --workers 4 -- cluster_dumps

Needs ``npufix[cluster]`` wherever workers run, and here besides:

    slurm:       pip install dask-jobqueue
    kubernetes:  pip install dask-kubernetes, and the Dask operator in the cluster

The dumps must have the same path everywhere: a shared file system, or a volume of all pods.
What follows ``--`` is given to ``npufix diagnose``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys


def slurm(options):
    """One job a worker; the queue decides when each begins, and work begins with the first."""
    from dask_jobqueue import SLURMCluster

    cluster = SLURMCluster(
        queue=options.queue,
        account=options.account,
        cores=1,
        processes=1,
        memory=options.memory,
        walltime=options.walltime,
        interface=options.interface,
    )
    cluster.scale(jobs=options.workers)
    return cluster


def kubernetes(options):
    """One pod a worker. The image holds npufix[cluster] and sees the dumps."""
    from dask_kubernetes.operator import KubeCluster, make_cluster_spec

    spec = make_cluster_spec(name="npufix", image=options.image, n_workers=options.workers)
    worker = spec["spec"]["worker"]["spec"]
    worker["containers"][0]["resources"] = {"requests": {"cpu": "1", "memory": options.memory_k8s}}
    if options.claim:  # a volume that holds the dumps, mounted where this machine has them
        volume = {"name": "dumps", "persistentVolumeClaim": {"claimName": options.claim}}
        worker["volumes"] = [volume]
        worker["containers"][0]["volumeMounts"] = [{"name": "dumps", "mountPath": options.mount}]
    return KubeCluster(custom_cluster_spec=spec, namespace=options.namespace)


def here(options):
    """Processes of this machine: to try it out."""
    from distributed import LocalCluster

    return LocalCluster(n_workers=options.workers, threads_per_worker=1, dashboard_address=None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("where", choices=("slurm", "kubernetes", "here"))
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--memory", default="4GB", help="of a SLURM job")
    parser.add_argument("--queue", help="partition of SLURM")
    parser.add_argument("--account", help="account of SLURM")
    parser.add_argument("--walltime", default="01:00:00", help="of a SLURM job")
    parser.add_argument("--interface", help="network of the workers of SLURM, such as ib0")
    parser.add_argument("--image", default="npufix:latest", help="of a pod")
    parser.add_argument("--memory-k8s", default="4Gi", help="of a pod")
    parser.add_argument("--namespace", default="default", help="of the pods")
    parser.add_argument("--claim", help="persistent volume claim with the dumps")
    parser.add_argument("--mount", default="/shared", help="where the claim is mounted")
    own, diagnose = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, diagnose = own[:at], own[at + 1 :]
    options = parser.parse_args(own)
    starts = {"slurm": slurm, "kubernetes": kubernetes, "here": here}
    with starts[options.where](options) as cluster:
        executor = f"dask:{cluster.scheduler_address}"
        command = ["npufix", "diagnose", *diagnose, "--executor", executor]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
