"""The folder that goes in front of PYTHONPATH of a server process; see ``mtpgate.engine.environment``.

There, ``sgl_kernel``, ``mtpgate_engine`` and its dist-info are top-level names. Nothing in it may import ``mtpgate`` or
anything beyond the standard library, torch and SGLang: the SGLang under test may live in another environment than
pytest.
"""
