"""Lock services: who may try next."""

from __future__ import annotations

from fencing.locks.redis import AsyncRedisLockService, RedisLockService

__all__ = ["AsyncRedisLockService", "RedisLockService"]
