"""The hosts of diffusers' family."""

from __future__ import annotations

from hosts import Host, feed_randint

HOSTS = [Host("diffusers_unconditional", feed_randint)]
