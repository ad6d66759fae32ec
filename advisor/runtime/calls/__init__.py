"""What changed code asks while it runs: ``__npufix__(place, conditions, tensor, **operands)``.

``at_run_time.holds`` is that function; ``questions`` says which conditions it can answer, without
torch; ``tables`` reads tables of cosines, ``origins`` finds those that a function was given;
``attention`` is the question of eager attention functions. The changed code imports these modules
by name (``source.guarding``): a file that moves is to be renamed there.
"""
