"""Evidence that the collector asks for: snapshots, now or after a window of allocation history, a post-mortem at a failed
allocation, a census. It owns the descriptors it was given and the history it turned on, and refuses to let either outlive the ask,
the connection or the process. All of it is done by the probe's own thread, but for the post-mortem."""

import collections
import threading
import time

from lowtide_probe import asking, census
from lowtide_probe.history import History
from lowtide_probe.link import encode
from lowtide_probe.snapshot import Failed, Passing, Refused, Snapshots, Unsupported

ASK_SECONDS = 60.0  # from the end of one ask to the next
POST_MORTEM_SECONDS = 3600.0

BUSY = "another snapshot is being written"
# torch looks up C++ stacks, its default, when a snapshot is made: that took minutes elsewhere, with the GIL held. Which ones the
# program records nobody can ask.
OWN = "the program records allocation history by itself, maybe with C++ stacks, which could hold it up for minutes: let it call torch.cuda.memory._dump_snapshot"

_STATUS = ((Unsupported, "unsupported"), (Refused, "refused"), (Exception, "failed"))


class Held:
    """An ask with its descriptor: armed for a failure, or with the history turned on for it."""

    def __init__(self, ask, fds):
        self.ask = ask
        self.fds = [fds.pop()]
        self.began = time.monotonic()

    def close(self):
        asking.close(self.fds)


class Evidence:
    def __init__(self, torch, reader, link):
        self._torch, self._reader, self._link = torch, reader, link
        self._snapshots = Snapshots(torch, reader)
        self._history = reader.history = History(torch, reader.ordinals)
        self._session = None  # of the link, in which the asks were made
        self._window = None  # Held, while the history is on for it
        self._closing = None  # the ask whose history is still to be turned off
        self._armed = None  # Held
        self._taken = None  # Held, while its snapshot is written
        self._busy = threading.Lock()  # one snapshot at a time; nobody waits for it
        self._asked = self._written = float("-inf")
        self._unsaid = collections.deque(maxlen=8)  # (session, encoded line) of post-mortems

    # The probe's thread.

    def turn(self):
        """Does what was asked, and what has become due."""
        if not self._link.connected or self._link.session != self._session:
            self._forget()
            self._session = self._link.session
        while self._unsaid:
            session, data = self._unsaid.popleft()
            if session == self._session:
                self._link.send(data)
        self._close()
        for line, fds in self._link.heard():
            try:
                self._hear(line, fds)
            except Exception:
                pass  # the descriptors of the others are still to be closed
            finally:
                asking.close(fds)
        window = self._window
        if window is not None and time.monotonic() - window.began >= window.ask.history:
            self._window, self._closing = None, window.ask
            self._finish(window, window.ask.history, "")
        self._close()

    def _forget(self):
        """The collector is gone, or another one is there: what it had asked for goes with it."""
        window, self._window = self._window, None
        if window is not None:
            window.close()
            self._closing = window.ask
        if self._busy.acquire(False):  # else a post-mortem is being written, which closes it
            try:
                armed, self._armed = self._armed, None
                if armed is not None:
                    armed.close()
            finally:
                self._busy.release()

    def _close(self):
        """Turns off the history that is no longer wanted. When torch raises, the next turn tries again."""
        ask = self._closing
        if ask is None:
            return
        there = self._history.recorded()
        try:
            self._history.off()
        except Exception:
            return
        self._closing = None
        said = {"v": 1, "kind": "recording", "id": ask.id, "time": time.time(), "history": "off"}
        if there is False:
            said["note"] = "the program had turned it off before"
        self._say(said)

    def _hear(self, line, fds):
        try:
            ask = asking.Ask(line)
        except asking.Invalid as error:
            if error.id:
                self._refuse(error.id, fds, str(error))
            return
        if ask.kind != "census" and len(fds) != 1:
            self._refuse(ask.id, fds, "one descriptor must come with it, not %d" % len(fds))
        elif ask.kind == "arm":
            self._arm(ask, fds)
        elif self._window is not None or self._closing is not None:
            self._refuse(ask.id, fds, "another one is under way", passing=True)
        elif time.monotonic() - self._asked < ASK_SECONDS:
            self._refuse(ask.id, fds, "not more than one in %g s: try again in %.0f s" % (ASK_SECONDS, ASK_SECONDS - (time.monotonic() - self._asked)), passing=True)
        elif ask.kind == "census":
            self._asked = time.monotonic()
            self._answer(ask, {"status": "ok"})
        else:
            self._begin(ask, fds)

    def _arm(self, ask, fds):
        if not self._busy.acquire(False):
            self._refuse(ask.id, fds, BUSY)
            return
        try:
            self._snapshots.usable(fds[0])
            before, self._armed = self._armed, Held(ask, fds)
            if before is not None:
                before.close()
        except Exception as error:
            asking.close(fds)
            self._say(line(ask, "oom", broken(error)))
        finally:
            self._busy.release()

    def _begin(self, ask, fds):
        held, note = Held(ask, fds), ""
        try:
            if not self._reader.ordinals():  # asked before the first read, which finds the devices in use
                self._reader.devices()
            if ask.history > 0:
                note = self._open(held)
        except Exception as error:
            note = "" if str(error) == OWN else ("without history: %s" if ask.history else "%s") % describe(error)
        if self._window is not held:
            self._finish(held, 0.0, note)

    def _finish(self, held, history, note):
        said = {"status": "refused", "error": BUSY, "passing": True}
        try:
            if self._busy.acquire(False):
                try:
                    said = self._take(held, history, note)
                finally:
                    self._busy.release()
        finally:
            held.close()
            self._asked = time.monotonic()
        self._answer(held.ask, said)

    def _open(self, held):
        """Turns the history on, and lets the ask wait for its end; or says why the snapshot is taken at once."""
        ask = held.ask
        self._snapshots.usable(held.fds[0])
        self._snapshots.fits(held.fds[0], ask.max_bytes, self._entries(ask.entries))
        recorded = self._history.recorded()
        if recorded:
            raise Refused(OWN)
        if recorded is None and self._snapshots.traced():  # torch 2.0 and before, where C++ stacks are not the default
            return "the program records history by itself"
        try:
            self._history.on(ask.entries)
        except Exception:
            self._closing = ask if self._history.mine else None
            raise
        held.began = time.monotonic()
        self._window = held
        self._say({"v": 1, "kind": "recording", "id": ask.id, "time": time.time(), "history": "on"})
        return ""

    # Both: the thread of a failed allocation, too.

    def _take(self, held, history, note=""):
        """Writes a snapshot, and says what it came to. Raises nothing of its own. _busy is held."""
        ask, began, self._taken = held.ask, time.monotonic(), held
        said = {"status": "ok"}
        try:
            self._snapshots.usable(held.fds[0])
            mine = self._history.mine
            if not mine and self._history.recorded():
                raise Refused(OWN)
            self._snapshots.fits(held.fds[0], ask.max_bytes, self._entries(self._history.entries) if mine else 0)
            said.update(self._snapshots.write(held.fds[0], ask.max_bytes, ask.budget - (time.monotonic() - began)))
        except Exception as error:
            said = broken(error)
        finally:
            self._taken = None
        said["took_seconds"] = round(time.monotonic() - began, 6)
        if history:
            said["history_seconds"] = round(history, 3)
        if note:
            said["note"] = note
        return said

    def _entries(self, each):
        return each * max(len(self._reader.ordinals()), 1)  # every device keeps as many

    def failed(self):
        """An allocation has failed, on this thread, and the program waits: the post-mortem, if it is armed and none was written for
        an hour. What is already under way in another thread, or further up in this one, is not waited for."""
        if self._armed is None or time.monotonic() - self._written < POST_MORTEM_SECONDS or not self._busy.acquire(False):
            return
        try:
            armed, self._armed = self._armed, None
            if armed is None:
                return
            self._written = time.monotonic()
            window, session = self._window, self._session
            said = {"status": "failed", "error": "stopped: the program interrupted it"}  # a signal handler that raises, which is its right
            try:
                said = self._take(armed, 0.0 if window is None else time.monotonic() - window.began)
            finally:
                armed.close()
                data = encode(line(armed.ask, "oom", said))
                if data is not None and not self._link.send_now(data):
                    self._unsaid.append((session, data))
        finally:
            self._busy.release()

    # The end.

    def rest(self):
        """The lines that could not be sent, for the last words of the process."""
        lines = []
        try:
            while True:
                session, data = self._unsaid.popleft()
                if session == self._link.session:
                    lines.append(data)
        except IndexError:
            return lines

    def end(self):
        """At the end of the process: no history stays on."""
        self._history.end()

    def abandon(self):
        """In a forked child: the descriptors' copies go, and torch is not touched."""
        for held in (self._window, self._armed, self._taken):
            if held is not None:
                held.close()
        self._window = self._armed = self._taken = None

    # What is said.

    def _answer(self, ask, said):
        if ask.census:
            try:
                said["census"] = census.count(self._torch, ask.census_seconds)
            except Exception as error:
                said["note"] = "no census: %s" % describe(error)
        self._say(line(ask, "asked", said))

    def _refuse(self, ask_id, fds, why, passing=False):
        asking.close(fds)  # before the answer: the collector looks whether anybody still has the file
        said = {"v": 1, "kind": "snapshot", "id": ask_id, "time": time.time(), "reason": "asked", "status": "refused", "error": why[:512]}
        if passing:
            said["passing"] = True
        self._say(said)

    def _say(self, said):
        data = encode(said)
        if data is not None:
            self._link.send(data)


def line(ask, reason, said):
    return dict({"v": 1, "kind": "snapshot", "id": ask.id, "time": time.time(), "reason": reason}, **said)


def broken(error):
    said = {"status": next(status for kind, status in _STATUS if isinstance(error, kind)), "error": describe(error)}
    if isinstance(error, Passing):
        said["passing"] = True
    return said


def describe(error):
    text = str(error)
    return (text if isinstance(error, (Unsupported, Refused, Failed)) else "%s: %s" % (type(error).__name__, text))[:512]
