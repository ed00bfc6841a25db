import unittest

from client import Client, Profile


def everything(profile, seconds, seed=1):
    return Client(profile, seed).arrivals(seconds)


class ClientTest(unittest.TestCase):
    def test_a_swing_makes_some_bursts_busy_and_others_slack(self):
        profile = Profile(rate=10, burst_seconds=20, drain_seconds=40, prompt_mean=1, prompt_max=1, swing=0.7)
        self.assertEqual([round(profile.rate_in(burst), 2) for burst in range(8)], [17.0, 3.0, 12.8, 17.0, 4.4, 3.0, 12.8, 17.0])
        counts = [0] * 7
        for request in everything(profile, 420):
            counts[int(request.arrival // 60)] += 1
            self.assertLess(request.arrival % 60, 20)
        # 340, 60, 256, 340, 88, 60 and 256 are expected; six standard deviations of the largest are 110.
        for got, want in zip(counts, (340, 60, 256, 340, 88, 60, 256)):
            self.assertLess(abs(got - want), 110)

    def test_requests_come_in_bursts_only_and_at_the_rate_asked_for(self):
        profile = Profile(rate=10, burst_seconds=20, drain_seconds=40, prompt_mean=1, prompt_max=1)
        requests = everything(profile, 6000)  # a hundred bursts of 20 s at 10/s: 20,000, give or take 5 sigma of 141
        self.assertTrue(all(r.arrival % 60 <= 20 for r in requests))
        self.assertLess(abs(len(requests) - 20000), 5 * 141)
        self.assertEqual([r.number for r in requests], list(range(1, len(requests) + 1)))
        self.assertEqual(sorted(r.arrival for r in requests), [r.arrival for r in requests])

    def test_without_drains_the_stream_never_stops(self):
        requests = everything(Profile(rate=10, burst_seconds=20, drain_seconds=0, prompt_mean=1, prompt_max=1), 1000)
        gaps = [b.arrival - a.arrival for a, b in zip(requests, requests[1:])]
        self.assertLess(max(gaps), 2.5)  # e^-25 each

    def test_the_same_seed_asks_the_same_in_whatever_portions_it_is_read(self):
        whole = everything(Profile(abort_fraction=0.5), 300, seed=9)
        client, portions = Client(Profile(abort_fraction=0.5), 9), []
        for tenth in range(3001):
            portions += client.arrivals(tenth / 10)
        key = lambda r: (r.arrival, r.tokens, r.output_tokens, r.max_tokens, r.hang_up_after)
        self.assertEqual([key(r) for r in portions], [key(r) for r in whole])
        self.assertNotEqual([key(r) for r in everything(Profile(abort_fraction=0.5), 300, seed=10)], [key(r) for r in whole])

    def test_lengths_keep_to_their_bounds_and_about_their_mean(self):
        profile = Profile(rate=10, burst_seconds=10, drain_seconds=0, prompt_mean=200, prompt_max=2000, output_mean=50,
                          output_max=100, abort_fraction=0.25, vocab=100)
        requests = everything(profile, 500)
        self.assertTrue(all(1 <= r.prompt_tokens <= 2000 and 2 <= r.output_tokens <= 100 for r in requests))
        self.assertTrue(all(0 <= token < 100 for r in requests[:50] for token in r.tokens))
        self.assertLess(abs(sum(r.prompt_tokens for r in requests) / len(requests) - 200), 10)
        gone = [r for r in requests if r.hang_up_after is not None]
        self.assertLess(abs(len(gone) / len(requests) - 0.25), 0.03)
        self.assertTrue(all(1 <= r.hang_up_after < r.output_tokens <= r.max_tokens for r in gone))

    def test_a_client_hangs_up_once_it_has_read_enough(self):
        client = Client(Profile(abort_fraction=1.0, burst_seconds=5, drain_seconds=0), 2)
        request = client.arrivals(30)[0]
        self.assertEqual(client.hang_ups(30), [])
        request.tokens += [0] * request.hang_up_after
        self.assertEqual(client.hang_ups(30), [request])
        client.done(request)
        self.assertEqual(client.hang_ups(30), [])

    def test_a_client_without_a_first_token_loses_patience(self):
        client = Client(Profile(patience_seconds=10, rate=100, burst_seconds=1, drain_seconds=1000), 2)
        requests = client.arrivals(1)
        requests[0].tokens.append(5)
        self.assertEqual(client.hang_ups(9.9), [])
        self.assertEqual(client.hang_ups(12), requests[1:])

    def test_after_stop_nobody_comes(self):
        client = Client(Profile(), 1)
        client.stop()
        self.assertEqual((client.arrivals(1000), client.next_arrival), ([], None))

    def test_profiles_that_make_no_sense_are_refused(self):
        for wrong in ({"rate": 0}, {"swing": 1}, {"swing": -0.1}, {"burst_seconds": 0}, {"drain_seconds": -1}, {"abort_fraction": 1.5}, {"prompt_mean": 0},
                      {"prompt_mean": 2000}, {"output_mean": 1}, {"patience_seconds": -1}):
            with self.assertRaises(ValueError, msg=str(wrong)):
                Profile(**wrong)


if __name__ == "__main__":
    unittest.main()
