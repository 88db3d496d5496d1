"""The worker on a machine so slow that a lease of less than 0.3 s is over when it is granted."""

from fencing import Guard, Lease
from fencing.demo import worker


class LateGuard(Guard):
    def acquire(self, resource: str, **how: object) -> Lease:
        lease = super().acquire(resource, **how)
        if lease.ttl < 0.3:
            assert lease.wait_lost()
        return lease


if __name__ == "__main__":
    worker.Guard = LateGuard
    worker.main()
