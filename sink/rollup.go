package sink

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"lowtide/processor/broker"
)

// What is added to the rollups at once when they are filled from samples that are older than they are.
const (
	fillRows  = 500_000 // bounds the memory of one insert
	fillFirst = time.Second
	fillMost  = time.Minute
)

// fillSettings bound the memory of an insert that fills a rollup: few rows at a time, and a sort that goes to the disk.
const fillSettings = "SETTINGS max_threads = 2, max_insert_threads = 1, max_block_size = 16384, min_insert_block_size_rows = 131072, " +
	"max_bytes_before_external_sort = 268435456, max_partitions_per_insert_block = 0"

// fill is how a rollup comes about: the query of a view that once added each inserted block to it.
type fill struct {
	rollup, source string
	query          string // of the view
}

var fillView = regexp.MustCompile(`(?s)^CREATE MATERIALIZED VIEW IF NOT EXISTS \S+ TO \w+\.(\w+) AS\n(SELECT\n.*\nFROM \w+\.(\w+)\n.*)$`)

// fills are the rollups of the schema, in the order of their files.
func fills(database string) ([]fill, error) {
	list, err := migrations(database)
	if err != nil {
		return nil, err
	}
	var out []fill
	for _, m := range list { // the views are dropped by later files; what they asked stands here
		if !strings.HasPrefix(m.statement, "CREATE MATERIALIZED VIEW") {
			continue
		}
		parts := fillView.FindStringSubmatch(m.statement)
		if parts == nil {
			return nil, fmt.Errorf("read schema %s: it is no view TO a rollup, AS SELECT, FROM a table", m.name)
		}
		out = append(out, fill{rollup: parts[1], query: parts[2], source: parts[3]})
	}
	return out, nil
}

// between is the query about the samples of a time that were stored before the rollups were: those have no number.
func (f fill) between(database string, columns []string, from, to time.Time) string {
	stamp := func(t time.Time) string { return "toDateTime('" + t.UTC().Format("2006-01-02 15:04:05") + "', 'UTC')" }
	names := strings.Join(columns, ", ")
	return "INSERT INTO " + database + "." + f.rollup + " (" + names + ") SELECT " + names +
		" FROM (\n" + f.of(database, "block = 0 AND time >= "+stamp(from)+" AND time < "+stamp(to)) + "\n) " + fillSettings
}

// of is the query about some of the samples.
func (f fill) of(database, where string) string {
	only := "FROM (SELECT * FROM " + database + "." + f.source + " WHERE " + where + ") AS " + f.source + "\n"
	return strings.Replace(f.query, "FROM "+database+"."+f.source+"\n", only, 1)
}

// tickLoad is what an instance has to do at a tick, most of what its ranks tell, as the views worked it out. Numbered samples have it as a column,
// since sorting all of them by instance and time costs more than everything else of a fill.
const tickLoad = "(max(running + ifNull(waiting, 0)) OVER tick)"

// added is the statement that adds the samples of some blocks, one row for each of the rollup. Its rows make one block, so that its token stands for
// all of them.
func (f fill) added(database, token string, columns []rollupColumn, after, upTo uint64) string {
	var names, values, keys []string
	for _, c := range columns {
		names = append(names, c.name)
		if c.function == "" {
			keys, values = append(keys, c.name), append(values, c.name)
		} else {
			values = append(values, c.function+"("+c.name+")")
		}
	}
	query := strings.ReplaceAll(f.of(database, fmt.Sprintf("block > %d AND block <= %d", after, upTo)), tickLoad, "load")
	query, _, _ = strings.Cut(query, "\nWINDOW ")
	return fmt.Sprintf("INSERT INTO %s.%s (%s) SELECT %s FROM (\n%s\n) GROUP BY %s SETTINGS max_threads = 2, max_insert_threads = 1, max_execution_time = %d, "+
		"min_insert_block_size_rows = 100000000, min_insert_block_size_bytes = 1073741824, max_partitions_per_insert_block = 0, "+
		"max_bytes_before_external_group_by = 268435456, insert_deduplication_token = '%s:%s'",
		database, f.rollup, strings.Join(names, ", "), strings.Join(values, ", "), query, strings.Join(keys, ", "), int(fillLimit.Seconds()), token, f.rollup)
}

// rollupColumn is a column with the function that puts its values together, "" for a part of the key.
type rollupColumn struct{ name, function string }

// Fill is what Filler asks for.
func (c *ClickHouse) Fill(ctx context.Context, token string, after, upTo uint64) error {
	all, err := fills(c.database)
	if err != nil {
		return err
	}
	for _, f := range all {
		columns, err := c.rollupColumns(ctx, f.rollup)
		if err != nil {
			return c.explain("list columns of "+f.rollup, err)
		}
		if err := c.exec(ctx, f.added(c.database, token, columns, after, upTo)); err != nil {
			return c.explain("fill "+f.rollup, err)
		}
	}
	return nil
}

func (c *ClickHouse) rollupColumns(ctx context.Context, table string) (out []rollupColumn, err error) {
	err = c.each(ctx, "SELECT name, extract(type, '^SimpleAggregateFunction\\\\((\\\\w+),') FROM system.columns WHERE database = '"+c.database+"' AND table = '"+table+"' ORDER BY position", func(scan func(...any) error) error {
		var one rollupColumn
		err := scan(&one.name, &one.function)
		out = append(out, one)
		return err
	})
	return out, err
}

// Backfill adds the samples that were stored before the rollups existed, the newest day first, and returns at once where that was done, or
// where there were none when the rollups were made: 0065 writes that down before anything is stored. It may be ended and called again, also
// by two at a time: a day is recorded once it is through, and nothing is added that is newer than the rollups, which count it themselves. A
// sample that is added twice all the same, as one that came late, changes no lowest, highest or last value. It tries again while the store is
// away or refuses, and returns nil when ctx ends.
func (c *ClickHouse) Backfill(ctx context.Context) error {
	pause := fillFirst
	for {
		err := c.backfill(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, ErrAway) && !errors.Is(err, ErrRefused) {
			return err
		}
		if pause == fillFirst || pause == fillMost {
			c.log.Warn("rollups wait for the store", "error", err)
		}
		if !broker.Wait(ctx, pause) {
			return nil
		}
		pause = min(2*pause, fillMost)
	}
}

// everything stands in the place of a day when all are done.
var everything = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)

func (c *ClickHouse) backfill(ctx context.Context) error {
	all, err := fills(c.database)
	if err != nil {
		return err
	}
	progress := c.database + ".rollup_progress"
	for _, f := range all {
		done, err := c.days(ctx, "SELECT day FROM "+progress+" WHERE rollup = '"+f.rollup+"' GROUP BY day")
		if err != nil {
			return c.explain("read rollup_progress", err)
		}
		if slices.ContainsFunc(done, everything.Equal) {
			continue
		}
		until, err := c.days(ctx, "SELECT min(done) AS day FROM "+progress+" WHERE rollup = '"+f.rollup+":until' HAVING count() > 0")
		if err != nil {
			return c.explain("read rollup_progress", err)
		}
		days, err := c.days(ctx, "SELECT DISTINCT toDate(time) AS day FROM "+c.database+"."+f.source+" ORDER BY day DESC")
		if err != nil {
			return c.explain("list days of "+f.source, err)
		}
		columns, err := c.columnsOf(ctx, f.rollup)
		if err != nil {
			return c.explain("list columns of "+f.rollup, err)
		}
		for _, day := range append(days, everything) {
			if slices.ContainsFunc(done, day.Equal) {
				continue
			}
			if !day.Equal(everything) {
				if err := c.fillDay(ctx, f, columns, day, until); err != nil {
					return c.explain("fill "+f.rollup+" with "+day.Format(time.DateOnly), err)
				}
			}
			if err := c.exec(ctx, "INSERT INTO "+progress+" (rollup, day) VALUES ('"+f.rollup+"', '"+day.Format(time.DateOnly)+"')"); err != nil {
				return c.explain("record rollup_progress", err)
			}
		}
		if len(days) > 0 {
			c.log.Info("rollup filled from older samples", "rollup", f.rollup, "days", len(days))
		}
	}
	return nil
}

// fillDay adds a day, or what of it was before until, in slices of at most fillRows rows, none longer than an hour unless several hours are smaller than that.
func (c *ClickHouse) fillDay(ctx context.Context, f fill, columns []string, day time.Time, until []time.Time) error {
	counts, err := c.hours(ctx, "SELECT toUInt8(toHour(time)) AS hour, count() FROM "+c.database+"."+f.source+
		" WHERE time >= toDateTime('"+day.Format(time.DateOnly)+" 00:00:00', 'UTC') AND time < toDateTime('"+day.Format(time.DateOnly)+" 00:00:00', 'UTC') + INTERVAL 1 DAY GROUP BY hour")
	if err != nil {
		return err
	}
	for _, part := range slicesOf(day, counts) {
		if len(until) > 0 && part[1].After(until[0]) {
			if part[1] = until[0]; !part[0].Before(part[1]) {
				continue
			}
		}
		if err := c.exec(ctx, f.between(c.database, columns, part[0], part[1])); err != nil {
			return err
		}
	}
	return nil
}

// slicesOf cuts a day by the rows of its hours.
func slicesOf(day time.Time, counts [24]uint64) (parts [][2]time.Time) {
	begin, rows := day, uint64(0)
	for hour, count := range counts {
		at := day.Add(time.Duration(hour) * time.Hour)
		if rows > 0 && rows+count > fillRows {
			parts, begin, rows = append(parts, [2]time.Time{begin, at}), at, 0
		}
		if rows += count; rows <= fillRows {
			continue
		}
		n := time.Duration(min((rows+fillRows-1)/fillRows, 60)) // an hour of its own that is too large
		for i := range n {
			from, to := at.Add(time.Hour*i/n).Truncate(time.Second), at.Add(time.Hour*(i+1)/n).Truncate(time.Second)
			parts = append(parts, [2]time.Time{from, to})
		}
		begin, rows = at.Add(time.Hour), 0
	}
	if rows > 0 {
		parts = append(parts, [2]time.Time{begin, day.Add(24 * time.Hour)})
	}
	return parts
}

func (c *ClickHouse) days(ctx context.Context, query string) (out []time.Time, err error) {
	err = c.each(ctx, query, func(scan func(...any) error) error {
		var day time.Time
		err := scan(&day)
		out = append(out, day)
		return err
	})
	return out, err
}

func (c *ClickHouse) hours(ctx context.Context, query string) (out [24]uint64, err error) {
	err = c.each(ctx, query, func(scan func(...any) error) error {
		var hour uint8
		var count uint64
		err := scan(&hour, &count)
		out[min(hour, 23)] = count
		return err
	})
	return out, err
}

func (c *ClickHouse) columnsOf(ctx context.Context, table string) (out []string, err error) {
	err = c.each(ctx, "SELECT name FROM system.columns WHERE database = '"+c.database+"' AND table = '"+table+"' ORDER BY position", func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		out = append(out, name)
		return err
	})
	return out, err
}

// each reads the rows of an answer.
func (c *ClickHouse) each(ctx context.Context, query string, take func(scan func(...any) error) error) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	rows, err := c.conn.Query(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := take(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
