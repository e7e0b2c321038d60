"""Modules that others import for what few jobs ask of them: their libraries are mapped when a job does.

Each library is five mappings, which every fork copies and every end of a job takes apart. Runs in the zygote alone,
before job.py; a script that imports one of these modules gets the module itself. Given by the host: idfunc.
"""

import importlib.util
import sys
import types


def generate_time_safe():
    return importlib.import_module("_uuid").generate_time_safe()


def import_beside(name, stand_ins):
    if name in sys.modules:
        return
    there = [each for each in stand_ins if each.__name__ not in sys.modules and is_installed(each.__name__)]
    sys.modules.update((each.__name__, each) for each in there)
    try:
        importlib.import_module(name)
    finally:
        for each in there:
            del sys.modules[each.__name__]


def is_installed(name):
    return importlib.util.find_spec(f"_{name.removeprefix('_')}") is not None


def stand_in(name, **holds):
    module = types.ModuleType(name)
    module.__dict__.update(holds)
    return module


import_beside("shutil", [stand_in("bz2"), stand_in("lzma")])  # which it only asks whether they are there
import_beside("typing", [stand_in("_typing", _idfunc=idfunc)])
import_beside("uuid", [stand_in("_uuid", generate_time_safe=generate_time_safe, has_uuid_generate_time_safe=1)])
