"""Operators over several processes."""

from __future__ import annotations

from .allreduce import AllReduce

__all__ = ["AllReduce"]
