"""What is asked of a change beside the comparison of calls that run.

``probe``: whether a call keeps the assumptions; ``refusals``: calls that the original refuses;
``elsewhere``: tensors on another device; ``makings``: how objects are made; ``work``: what is
called more often; ``timing``: how long both take on a device. ``requirements`` says what must hold
before a change is equivalent: its lines have run, nothing was left out of the comparison.
"""
