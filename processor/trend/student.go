package trend

import (
	"math"
	"sync"
)

// StudentQuantile returns the t below which Student's distribution with the
// given degrees of freedom has probability p. It is NaN for p outside (0, 1),
// for less than one degree of freedom and beyond the range of a float64. The start is Hill's asymptotic
// inverse (Algorithm 396, CACM 13, 1970), refined by Newton's method on the
// distribution function to a relative error below 1e-10.
func StudentQuantile(p, degrees float64) float64 {
	if !(p > 0 && p < 1) || !(degrees >= 1) {
		return unknown()
	}
	if p < 0.5 {
		return -upperQuantile(p, degrees)
	}
	return upperQuantile(1-p, degrees)
}

// twoSided returns the half width of a confidence interval, in standard errors,
// for whole degrees of freedom. Every line needs one, so that the first few are
// kept.
func twoSided(degrees int) float64 {
	if table := quantiles(); degrees >= 0 && degrees < len(table) {
		return table[degrees]
	}
	return StudentQuantile((1+confidence)/2, float64(degrees))
}

var quantiles = sync.OnceValue(func() *[128]float64 {
	var table [128]float64
	for degrees := range table {
		table[degrees] = StudentQuantile((1+confidence)/2, float64(degrees))
	}
	return &table
})

// upperQuantile returns the t >= 0 that is exceeded with probability tail, at
// most one half.
func upperQuantile(tail, degrees float64) float64 {
	switch {
	case tail == 0.5:
		return 0
	case degrees == 1: // Cauchy
		return 1 / math.Tan(math.Pi*tail)
	case degrees == 2:
		a := 2*tail - 1
		return -a / math.Sqrt(2*tail*(1-tail))
	case math.IsInf(degrees, 1):
		return math.Sqrt2 * math.Erfcinv(2*tail)
	}
	t := hill(2*tail, degrees)
	if !finite(t) {
		return unknown()
	}
	scale := density(degrees)
	// Newton converges from Hill's start in two or three steps; the bound only
	// guards against rounding that never settles.
	for range 16 {
		slope := scale * math.Exp(-(degrees+1)/2*math.Log1p(t*t/degrees))
		if slope == 0 {
			break
		}
		step := (studentTail(t, degrees) - tail) / slope
		// The tail is convex: only a step from above can overshoot, and from
		// below, zero included, the steps close in.
		next := max(t+step, 0)
		if math.Abs(next-t) <= 1e-13*next {
			return next
		}
		t = next
	}
	return t
}

// hill is the body of Algorithm 396: the two-sided quantile for p.
func hill(p, n float64) float64 {
	a := 1 / (n - 0.5)
	b := 48 / (a * a)
	c := ((20700*a/b-98)*a-16)*a + 96.36
	d := ((94.5/(b+c)-3)/b + 1) * math.Sqrt(a*math.Pi/2) * n
	x := d * p
	y := math.Pow(x, 2/n)
	if y > 0.05+a {
		x = -math.Sqrt2 * math.Erfcinv(p)
		y = x * x
		if n < 5 {
			c += 0.3 * (n - 4.5) * (x + 0.6)
		}
		c = (((0.05*d*x-5)*x-7)*x-2)*x + b + c
		y = (((((0.4*y+6.3)*y+36)*y+94.5)/c-y-3)/b + 1) * x
		y = a * y * y
		if y > 0.002 {
			y = math.Expm1(y)
		} else {
			y += y * y / 2
		}
	} else {
		y = ((1/(((n+6)/(n*y)-0.089*d-0.822)*(n+2)*3)+0.5/(n+4))*y-1)*(n+1)/(n+2) + 1/y
	}
	return math.Sqrt(n * y)
}

// density returns the density at zero: Γ((ν+1)/2) / (√(νπ) Γ(ν/2)).
func density(degrees float64) float64 {
	above, _ := math.Lgamma((degrees + 1) / 2)
	below, _ := math.Lgamma(degrees / 2)
	return math.Exp(above-below) / math.Sqrt(degrees*math.Pi)
}

// studentTail returns the probability of exceeding t >= 0, which is half of
// I_{ν/(ν+t²)}(ν/2, 1/2) (Abramowitz & Stegun 26.7.1 and 26.5.2).
func studentTail(t, degrees float64) float64 {
	square := t * t
	inner, outer := square/(degrees+square), degrees/(degrees+square)
	if square < 1 {
		// Near the middle the tail is known from the middle.
		return 0.5 - incompleteBeta(inner, outer, 0.5, degrees/2)/2
	}
	return incompleteBeta(outer, inner, degrees/2, 0.5) / 2
}

// incompleteBeta returns the regularised incomplete beta function I_x(a, b) by
// its continued fraction (Abramowitz & Stegun 26.5.8), evaluated by Lentz's
// method from the side on which it converges fast. The rest is 1−x, which its
// caller knows to more digits than a subtraction would leave.
func incompleteBeta(x, rest, a, b float64) float64 {
	if x <= 0 {
		return 0
	}
	if rest <= 0 {
		return 1
	}
	whole, _ := math.Lgamma(a + b)
	left, _ := math.Lgamma(a)
	right, _ := math.Lgamma(b)
	front := math.Exp(whole - left - right + a*logarithm(x, rest) + b*logarithm(rest, x))
	if x < (a+1)/(a+b+2) {
		return front * betaFraction(x, a, b) / a
	}
	return 1 - front*betaFraction(rest, b, a)/b
}

// logarithm returns log x, where rest is 1−x.
func logarithm(x, rest float64) float64 {
	if rest < 0.5 {
		return math.Log1p(-rest)
	}
	return math.Log(x)
}

func betaFraction(x, a, b float64) float64 {
	const tiny = 1e-300
	lift := func(v float64) float64 {
		if math.Abs(v) < tiny {
			return tiny
		}
		return v
	}
	c := 1.0
	d := 1 / lift(1-(a+b)*x/(a+1))
	sum := d
	// The number of terms grows with the square root of the larger parameter.
	for m := 1.0; m <= 10000; m++ {
		even := m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
		d = 1 / lift(1+even*d)
		c = lift(1 + even/c)
		sum *= d * c
		odd := -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
		d = 1 / lift(1+odd*d)
		c = lift(1 + odd/c)
		sum *= d * c
		if math.Abs(d*c-1) < 1e-15 {
			break
		}
	}
	return sum
}
