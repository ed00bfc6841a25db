package trend

import "math"

// confidence is the two-sided level of every interval of this package.
const confidence = 0.95

// Line is a straight line fitted to points, in units of y and of y per x. A
// field that the points do not settle is NaN: all of them for fewer than two
// points or one x, the error and the interval for fewer than three points.
type Line struct {
	Points    int     // measured points that were used
	Slope     float64 // y per x
	Intercept float64 // y at x = 0
	StdErr    float64 // standard error of the slope
	Low, High float64 // 95 % interval of the slope
	R2        float64 // share of the variance of y that the line explains, 0..1; NaN where y does not vary
}

// Known reports whether the slope has an interval.
func (l Line) Known() bool { return l.Low <= l.High }

// LeastSquares fits a line by ordinary least squares in two passes, with sums
// about the means so that neither a large y nor hours since 1970 cost digits.
// The interval is Slope ± t(0.975, n−2) · StdErr with StdErr = √(SSE/(n−2)/Sxx)
// (Draper & Smith, Applied Regression Analysis, 1.4). The order of the points
// does not matter.
func LeastSquares(x, y []float64) Line {
	x, y = common(x, y)
	return fit(x, y, centre(x, y))
}

// LineAndLevel returns what LeastSquares and Level do, for less than the two.
func LineAndLevel(x, y []float64) (Line, Levelling) {
	x, y = common(x, y)
	sums := centre(x, y)
	if sums.points < len(x) {
		return fit(x, y, sums), Level(x, y)
	}
	return fit(x, y, sums), levelling(x, y, sums)
}

// fit is the line through points whose sums are known.
func fit(x, y []float64, sums centred) Line {
	line := Line{Slope: unknown(), Intercept: unknown(), StdErr: unknown(), Low: unknown(), High: unknown(), R2: unknown()}
	line.Points = sums.points
	line.Slope = sums.slope()
	line.Intercept = known(sums.meanY - line.Slope*sums.meanX)
	if sums.points < 3 || !finite(line.Slope) {
		return line
	}
	// The residuals are summed as such: Syy − Slope·Sxy would cancel on a
	// straight line and may turn negative.
	var sse float64
	for i := range x {
		if !finite(x[i]) || !finite(y[i]) {
			continue
		}
		residual := (y[i] - sums.meanY) - line.Slope*(x[i]-sums.meanX)
		sse += residual * residual
	}
	if sums.syy > 0 {
		line.R2 = known(max(0, 1-sse/sums.syy))
	}
	degrees := sums.points - 2
	line.StdErr = known(math.Sqrt(sse / float64(degrees) / sums.sxx))
	half := twoSided(degrees) * line.StdErr
	line.Low, line.High = known(line.Slope-half), known(line.Slope+half)
	return line
}

// centred holds the means of measured points and the sums of squares and
// products about them.
type centred struct {
	points        int
	meanX, meanY  float64
	sxx, sxy, syy float64
}

func centre(x, y []float64) centred {
	if c, ok := centreMeasured(x, y); ok {
		return c
	}
	var c centred
	// Means about the first point: the sum of large equal values would round.
	var x0, y0 float64
	for i := range x {
		if !finite(x[i]) || !finite(y[i]) {
			continue
		}
		if c.points == 0 {
			x0, y0 = x[i], y[i]
		}
		c.points++
		c.meanX += x[i] - x0
		c.meanY += y[i] - y0
	}
	if c.points == 0 {
		return c
	}
	c.meanX = x0 + c.meanX/float64(c.points)
	c.meanY = y0 + c.meanY/float64(c.points)
	for i := range x {
		if !finite(x[i]) || !finite(y[i]) {
			continue
		}
		dx, dy := x[i]-c.meanX, y[i]-c.meanY
		c.sxx += dx * dx
		c.sxy += dx * dy
		c.syy += dy * dy
	}
	return c
}

// centreMeasured is centre where all points are measured; ok is false where one may not be. What is not finite would make its sum so.
func centreMeasured(x, y []float64) (c centred, ok bool) {
	if len(x) == 0 {
		return c, false
	}
	y = y[:len(x)]
	x0, y0 := x[0], y[0]
	for i, v := range x {
		c.meanX += v - x0
		c.meanY += y[i] - y0
	}
	if !finite(c.meanX) || !finite(c.meanY) {
		return c, false
	}
	c.points = len(x)
	c.meanX = x0 + c.meanX/float64(c.points)
	c.meanY = y0 + c.meanY/float64(c.points)
	for i, v := range x {
		dx, dy := v-c.meanX, y[i]-c.meanY
		c.sxx += dx * dx
		c.sxy += dx * dy
		c.syy += dy * dy
	}
	return c, true
}

// slope is NaN for fewer than two points, one x, and sums that overflow.
func (c centred) slope() float64 {
	if c.points < 2 || !(c.sxx > 0) || !finite(c.sxx) || !finite(c.sxy) || !finite(c.syy) {
		return unknown()
	}
	return known(c.sxy / c.sxx)
}
