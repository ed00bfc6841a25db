import unittest

import excerpt
from excerpt import Excerpt

HOST = {"cluster": "lab", "name": "a", "boot_id": "b"}


def source(status, **more):
    return {"host": HOST, "source": dict({"name": "nvml", "status": status, "took_seconds": 0.1}, **more)}


class ExcerptTest(unittest.TestCase):
    def test_a_recording_has_its_own_process_and_the_host(self):
        own = {"host": HOST, "worker": {"pid": 9}, "process": {"fds": 3}}
        self.assertEqual(Excerpt(9).take(own), {"host": dict(HOST, boot_id=excerpt.BOOT), "worker": {"pid": 9}, "process": {"fds": 3}})
        self.assertEqual(HOST["boot_id"], "b")
        self.assertIsNone(Excerpt(9).take({"worker": {"pid": 8}, "process": {}}))
        self.assertIsNone(Excerpt(9).take({"xid": {"pid": 8, "code": 31}}))
        self.assertIsNotNone(Excerpt(9).take({"xid": {"pid": 9, "code": 31}}))
        self.assertIsNone(Excerpt(9).take({"xid": {"code": 31}}))
        self.assertIsNotNone(Excerpt(9, faulty=True).take({"xid": {"code": 31}}))
        self.assertIsNone(Excerpt(9, faulty=True).take({"xid": {"pid": 8, "code": 31}}))
        card = Excerpt(9).take({"host": HOST, "gpu": {"uuid": "GPU-x", "used_bytes": 5, "processes_complete": True, "power_watts": 301.5}})
        self.assertEqual(card["gpu"], {"uuid": "GPU-x", "used_bytes": 5})

    def test_a_sensor_is_told_when_it_changes_and_every_tenth_time(self):
        one = Excerpt(9)
        said = [source("ok")] * 12 + [source("lost", error="gone")] * 3 + [source("ok")] * 2
        kept = [one.take(event) for event in said]
        self.assertEqual([i for i, event in enumerate(kept) if event], [0, 10, 12, 13, 14, 15])
        self.assertEqual(kept[12]["source"], {"name": "nvml", "status": "lost", "error": "gone"})

    def test_what_a_sensor_says_of_a_neighbour_is_left_out(self):
        said = source("lost", error="snapshot x of pid 688 (retention suspected): failed")
        self.assertIsNone(Excerpt(9).take(said))
        self.assertIsNotNone(Excerpt(688).take(said))

    def test_the_machine_is_told_every_fifth_time(self):
        one = Excerpt(9)
        kept = [one.take({"host": HOST, "machine": {"fds": 4, "kernel_version": "5.15.0-private"}}) for _ in range(11)]
        self.assertEqual([i for i, event in enumerate(kept) if event], [0, 5, 10])
        self.assertEqual(kept[0]["machine"], {"fds": 4, "kernel_version": excerpt.KERNEL})

    def test_digits_that_nobody_judges_are_cut_off(self):
        for told, kept in (("2026-11-30T05:06:07.854237476Z", "2026-11-30T05:06:07.854Z"), ("2026-11-30T05:06:07Z", "2026-11-30T05:06:07Z"),
                           ("2026-11-30T05:06:07.85Z", "2026-11-30T05:06:07.85Z")):
            self.assertEqual(Excerpt(9).take({"time": told})["time"], kept)
        self.assertEqual(Excerpt(9).take({"engine": {"itl_p50_seconds": 0.08636363636, "running": 3}})["engine"], {"itl_p50_seconds": 0.086364, "running": 3})

    def test_serial_numbers_become_numbers(self):
        seen = {}
        line = '{"a":"GPU-1234abcd-0000-1111-2222-333344445555","b":"GPU-ffffffff-0000-1111-2222-333344445555"}'
        self.assertEqual(excerpt.neutral(line, seen), '{"a":"GPU-00000000-0000-4000-8000-000000000001","b":"GPU-00000000-0000-4000-8000-000000000002"}')
        self.assertEqual(excerpt.neutral("GPU-ffffffff-0000-1111-2222-333344445555", seen), "GPU-00000000-0000-4000-8000-000000000002")


if __name__ == "__main__":
    unittest.main()
