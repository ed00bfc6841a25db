"""Prints reference.json: numbers worked out from definitions only.

Python's standard library, exact fractions where a sum can be exact, every
pair and every permutation enumerated. Nothing here shares a formula with the
Go code beyond the definition: the variance of S is the mean of S squared over
all orders, Student's quantile is bisected on the finite sums of Abramowitz and
Stegun 26.7.3 and 26.7.4. Run: python3 reference.py > reference.json
"""
import itertools, json, math, random
from decimal import Decimal, getcontext
from fractions import Fraction as F

getcontext().prec = 40


def slopes(x, y):
    return sorted((F(y[j]) - F(y[i])) / (F(x[j]) - F(x[i]))
                  for i in range(len(x)) for j in range(i) if x[i] != x[j])


def median(v):
    v = sorted(v)
    n = len(v)
    return (v[(n - 1) // 2] + v[n // 2]) / 2


def groups(v):
    return [v.count(u) for u in set(v)]


def theilsen(x, y, z=1.959963984540054):
    """scipy.stats.theilslopes, but None for a rank beyond the end."""
    s = slopes(x, y)
    n = len(x)
    var = F(n * (n - 1) * (2 * n + 5)
            - sum(k * (k - 1) * (2 * k + 5) for k in groups(x) + groups(y)), 18)
    w = z * math.sqrt(var)
    low, high = round((len(s) - w) / 2) - 1, round((len(s) + w) / 2)
    out = low < 0 or high >= len(s) or n < 5
    return dict(slope=float(median(s)), low=None if out else float(s[low]),
                high=None if out else float(s[high]))


def score(y, tol):
    return sum((y[i] - y[j] > tol) - (y[j] - y[i] > tol)
               for i in range(len(y)) for j in range(i))


def kendall(y, tol):
    s = score(y, tol)
    if tol == 0:
        n = len(y)
        var = F(n * (n - 1) * (2 * n + 5)
                - sum(k * (k - 1) * (2 * k + 5) for k in groups(y)), 18)
    else:
        all_s = [score(p, tol) for p in itertools.permutations(y)]
        assert sum(all_s) == 0
        var = F(sum(v * v for v in all_s), len(all_s))
    z = 0.0
    if s:
        z = (abs(s) - 1) / math.sqrt(var) * (1 if s > 0 else -1)
    return dict(s=s, var=float(var), z=z)


def line(x, y):
    x, y = [F(v) for v in x], [F(v) for v in y]
    n = len(x)
    mx, my = sum(x) / n, sum(y) / n
    sxx = sum((a - mx) ** 2 for a in x)
    slope = sum((a - mx) * (b - my) for a, b in zip(x, y)) / sxx
    sse = sum((b - my - slope * (a - mx)) ** 2 for a, b in zip(x, y))
    syy = sum((b - my) ** 2 for b in y)
    v = sse / (n - 2) / sxx
    err = (Decimal(v.numerator) / Decimal(v.denominator)).sqrt()
    return dict(slope=float(slope), intercept=float(my - slope * mx),
                stderr=float(err), r2=float(1 - sse / syy))


def within(t, nu):
    """A(t|nu), the probability of -t..t (A&S 26.7.3, 26.7.4)."""
    theta = math.atan2(t, math.sqrt(nu))
    c, s = math.cos(theta), math.sin(theta)
    if nu % 2:
        total, term = 0.0, c
        for k in range(3, nu + 1, 2):
            total += term
            term *= c * c * (k - 1) / k
        return 2 / math.pi * (theta + s * total)
    total, term = 0.0, 1.0
    for k in range(2, nu + 1, 2):
        total += term
        term *= c * c * (k - 1) / k
    return s * total


def student(p, nu):
    low, high = 0.0, 1e9
    for _ in range(300):
        mid = (low + high) / 2
        if within(mid, nu) < 2 * p - 1:
            low = mid
        else:
            high = mid
    return (low + high) / 2


def main():
    rng = random.Random(20261101)
    series = {
        "sen1968": ([1, 2, 3, 4, 10, 12, 18], [9, 15, 19, 20, 45, 55, 78]),
        "hourly": ([0, 1, 2, 3], [42, 44, 46, 48]),
        "tied_times": ([1, 1, 2, 3, 3, 4, 5], [10, 22, 21, 30, 22, 30, 40]),
        "constant": ([0, 1, 2, 3, 4, 5], [7, 7, 7, 7, 7, 7]),
        "steps": (list(range(12)), [0, 0, 0, 128, 128, 128, 128, 256, 256, 384, 384, 384]),
        "five": ([0, 1, 2, 3, 4], [1, 3, 2, 5, 9]),
    }
    for n in (6, 7, 9, 24, 51, 96):
        x = sorted(rng.sample(range(1, 4096), n))
        y = [rng.randrange(-64, 64) + 3 * (a // 64) for a in x]
        series["random%d" % n] = ([a / 32 for a in x], [b / 4 for b in y])
    result = dict(series=[], student=[])
    for name, (x, y) in series.items():
        case = dict(name=name, x=x, y=y, theilsen=theilsen(x, y), kendall=[])
        for tol in (0, 2.5):
            if tol == 0 or len(y) <= 7:
                case["kendall"].append(dict(tolerance=tol, **kendall(y, tol)))
        if name not in ("hourly", "constant"):
            case["line"] = line(x, y)
        result["series"].append(case)
    for nu in (1, 2, 3, 4, 5, 7, 10, 15, 22, 30, 49, 94, 200):
        for p in (0.55, 0.75, 0.9, 0.95, 0.975, 0.995, 0.9995):
            result["student"].append(dict(p=p, degrees=nu, t=student(p, nu)))
    print(json.dumps(result, indent=None, separators=(",", ":")).replace('{"name"', '\n{"name"').replace('{"p"', '\n{"p"'))


main()
