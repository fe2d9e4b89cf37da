"""Worker of `launch`."""

import sys
import traceback
from pathlib import Path
from types import TracebackType

from gem_worker.exit_status import FAILED, status_of
from gem_worker.termination import TerminatedError
from gem_worker.warning_file import hand_over_warnings

from gem_launch.functions import CallEnd, call, write_ending

_OWN = (__file__, str(Path(__file__).with_name("functions.py")))


def main() -> int:
    """Exit code."""
    written, ending = map(Path, sys.argv[1:])
    hand_over_warnings(echo=False)  # `launch` shows this process's output, and its warnings besides
    try:
        result = call(written)
    except KeyboardInterrupt:
        return 130
    except TerminatedError:
        return 0
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            write_ending(ending, CallEnd())
            return 0
        text = "".join(traceback.format_exception(type(error), error, _of_the_function(error.__traceback__)))
        write_ending(ending, CallEnd(traceback=text))
        return status_of(error)
    try:
        write_ending(ending, CallEnd(result))
    except Exception as error:
        text = f"its result cannot be returned: {error}; return numbers, arrays, tensors or plain objects"
        write_ending(ending, CallEnd(traceback=text))
        return FAILED
    return 0


def _of_the_function(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and frames.tb_frame.f_code.co_filename in _OWN:
        frames = frames.tb_next
    return frames


if __name__ == "__main__":
    sys.exit(main())
