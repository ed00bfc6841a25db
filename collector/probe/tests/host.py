"""A program to be watched: does what stdin says, one Python line each, and answers with a line."""

import os
import sys
import traceback

names = {"__name__": "host"}
for line in iter(sys.stdin.readline, ""):
    if line.startswith("die "):
        exec(line[4:], names)  # what it raises, nobody catches
    try:
        print(repr(eval(line, names)), flush=True)
    except SyntaxError:
        try:
            exec(line, names)
            print("done", flush=True)
        except Exception:
            print("raised " + traceback.format_exc().splitlines()[-1], flush=True)
    except Exception:
        print("raised " + traceback.format_exc().splitlines()[-1], flush=True)
