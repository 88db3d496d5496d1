"""The worker with all looks at the clock removed but the one before the entry.

What then refuses a write in the third act can only be the database.
"""

from fencing.demo import worker
from fencing.hooks import engine

if __name__ == "__main__":
    engine.Hooks._check_deadlines = lambda *_: None
    worker.main()
