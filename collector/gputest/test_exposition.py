import os
import threading
import unittest

from exposition import Registry, number, process_text, read_process

HERE = os.path.dirname(os.path.abspath(__file__))
OWN = {"model_name": "m", "engine": "0"}


class ExpositionTest(unittest.TestCase):
    def test_the_text_is_prometheus_clients_own(self):
        # testdata/prometheus_client.txt is what prometheus_client 0.16 printed for these very families.
        registry = Registry(1788184100.25)
        registry.gauge("vllm:num_requests_running", "Number of requests.", OWN).child().set(7)
        success = registry.counter("vllm:request_success", "Count \\ of\nrequests.",
                                   *[dict(OWN, finished_reason=reason) for reason in ("stop", "abort")])
        success.child(finished_reason="abort").inc(2)
        registry.counter("vllm:prompt_tokens", "Tokens.", OWN).child().inc(12345678)
        ttft = registry.histogram("vllm:time_to_first_token_seconds", "TTFT.", (0.001, 0.25, 1, 7.5, 2560), OWN).child()
        for value in (0.0005, 0.25, 0.3, 5000):
            ttft.observe(value)
        registry.gauge("vllm:cache_config_info", "Info", {"block_size": "16", "note": 'a "b" \\ c\nd'}).child().set(1)
        registry.gauge("vllm:kv_bytes", "Big", {}).child().set(1073741824)
        with open(os.path.join(HERE, "testdata", "prometheus_client.txt"), encoding="utf-8") as handle:
            self.assertEqual(registry.text(), handle.read())

    def test_numbers(self):
        for value, text in ((1, "1.0"), (0.25, "0.25"), (1788184100, "1.7881841e+09"), (999999, "999999.0"),
                            (float("inf"), "+Inf"), (float("nan"), "NaN"), (-2, "-2.0"), (1000000, "1e+06")):
            self.assertEqual(number(value), text)

    def test_a_label_that_was_not_created_is_an_error(self):
        registry = Registry(0)
        family = registry.counter("c", "C.", {"reason": "stop"})
        with self.assertRaisesRegex(KeyError, "nobody"):
            family.child(reason="nobody")

    def test_no_text_is_made_while_the_lock_is_held(self):
        registry = Registry(0)
        family = registry.histogram("h", "H.", (1, 2), {})
        seen = []
        lines = family.lines
        family.lines = lambda copied: seen.append(registry.lock.locked()) or lines(copied)
        registry.text()
        self.assertEqual(seen, [False])

    def test_a_scrape_sees_count_and_buckets_of_one_moment(self):
        registry = Registry(0)
        histogram = registry.histogram("h", "H.", (1,), {}).child()
        stop = threading.Event()

        def write():
            while not stop.is_set():
                with registry.lock:
                    histogram.observe(0.5)
                    histogram.observe(2)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(200):
                rows = dict(line.rsplit(" ", 1) for line in registry.text().splitlines() if line[0] != "#")
                low, every, total = (float(rows[name]) for name in ('h_bucket{le="1.0"}', "h_count", "h_sum"))
                self.assertEqual((every, total), (2 * low, 2.5 * low))
        finally:
            stop.set()
            writer.join()

    def test_this_process_is_described(self):
        text = process_text()
        for family in ("process_resident_memory_bytes", "process_virtual_memory_bytes", "process_open_fds", "process_max_fds",
                       "process_start_time_seconds", "process_cpu_seconds_total", "python_gc_objects_collected_total", "python_info"):
            self.assertIn("# TYPE %s " % family, text)
        rows = {row[0]: row[3] for row in read_process()}
        with open("/proc/self/statm") as handle:
            pages = int(handle.read().split()[1])
        resident = rows["process_resident_memory_bytes"]
        self.assertLess(abs(resident - pages * os.sysconf("SC_PAGE_SIZE")), 64 << 20)

    def test_without_proc_the_process_families_are_absent(self):
        self.assertEqual(read_process("/nonexistent"), [])


if __name__ == "__main__":
    unittest.main()
