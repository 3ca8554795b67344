"""The command `nbmf`, and `python -m nbmf`: Ctrl-C ends either without a traceback, from the first import on."""

import atexit
import os


def main(prog_name: str | None = None) -> None:
    """Run the command line. Commands handle Ctrl-C themselves; before and after, there is nothing to undo."""
    try:
        import signal  # noqa: PLC0415 (it has imports of its own, which take longer than anything else here)

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell ignores it in the background
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))
            # Python resets it when it ends, and would then die of Ctrl-C after everything was done
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        os._exit(130)
    from nbmf.cli import main as command  # noqa: PLC0415 (not before the handler is there)

    command(prog_name=prog_name)


if __name__ == "__main__":
    main("python -m nbmf")
