package main

import (
	"context"
	"encoding/json"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lowtide/notifier/preview"
)

// measure writes into the page what a reader would see of each card: whether its first line is cut or broken, and what sticks out.
const measure = `<script>
const out = [];
for (const card of document.querySelectorAll("article")) {
  const head = card.querySelector("header"), name = card.dataset.name;
  const line = parseFloat(getComputedStyle(head).fontSize) * 1.46;
  let wide = 0;
  for (const e of card.querySelectorAll("*")) if (!e.closest("svg")) wide = Math.max(wide, e.scrollWidth - e.clientWidth > 2 && e.clientWidth > 0 ? e.scrollWidth - e.clientWidth : 0);
  out.push({name, lines: Math.round(head.getBoundingClientRect().height / line), wide, height: Math.round(card.getBoundingClientRect().height), buttons: card.querySelectorAll(".button").length});
}
const pre = document.createElement("pre"); pre.id = "measured"; pre.textContent = JSON.stringify(out); document.body.appendChild(pre);
</script>`

// The card of every class, drawn as Slack shows it and looked at in a browser: the verdict stands in its first line, nothing sticks out, and
// nobody has to scroll through three screens. The picture is left in cards.png for people.
func TestEndToEndCards(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("NO BROWSER: the cards were not looked at; install the Debian package chromium")
	}
	paths, err := filepath.Glob("notifier/testdata/cards/*.json")
	if err != nil || len(paths) < 21 {
		t.Fatalf("%d golden cards, %v; every class has one", len(paths), err)
	}
	var cards []preview.Message
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		card, err := preview.Read(text)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		card.Name = strings.TrimSuffix(filepath.Base(path), ".json")
		cards = append(cards, card)
	}
	page, err := preview.HTML(cards...)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	file, picture := filepath.Join(folder, "cards.html"), filepath.Join(folder, "cards.png")
	if err := os.WriteFile(file, []byte(page+measure), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	look := func(args ...string) string {
		t.Helper()
		args = append([]string{"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--user-data-dir=" + filepath.Join(folder, "profile"), "--window-size=720,4000"}, args...)
		out, err := exec.CommandContext(ctx, browser, append(args, "file://"+file)...).Output()
		if err != nil {
			t.Fatalf("look at the cards: %v", err)
		}
		return string(out)
	}
	found := regexp.MustCompile(`(?s)<pre id="measured">(.*?)</pre>`).FindStringSubmatch(look("--dump-dom"))
	if found == nil {
		t.Fatal("the browser did not measure the cards")
	}
	var measured []struct {
		Name                         string
		Lines, Wide, Height, Buttons int
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(found[1])), &measured); err != nil {
		t.Fatal(err)
	}
	if len(measured) != len(cards) {
		t.Fatalf("%d of %d cards are on the page", len(measured), len(cards))
	}
	for _, card := range measured {
		if card.Lines != 1 {
			t.Errorf("%s: the verdict takes %d lines", card.Name, card.Lines)
		}
		if card.Wide > 0 {
			t.Errorf("%s: something sticks out by %d pixels", card.Name, card.Wide)
		}
		if card.Height < 200 || card.Height > 2600 {
			t.Errorf("%s: the card is %d pixels high", card.Name, card.Height)
		}
		t.Logf("%-20s %4d pixels high, %d buttons", card.Name, card.Height, card.Buttons)
	}
	look("--screenshot=" + picture)
	drawn, err := os.ReadFile(picture)
	if err != nil || len(drawn) < 50_000 {
		t.Fatalf("the picture has %d bytes, %v", len(drawn), err)
	}
	if err := os.WriteFile("cards.png", drawn, 0o644); err != nil {
		t.Fatal(err)
	}
}
