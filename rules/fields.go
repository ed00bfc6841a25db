package rules

// fieldDoc is a field of a rule: what the schema and the loader know of it.
type fieldDoc struct {
	name, doc string
	required  bool // of a rule that is laid over no other
}

// ruleFields are the fields of a rule, in the order in which they are best written.
var ruleFields = []fieldDoc{
	{"id", "The name of the rule: a-z, 0-9 and _. A rule with the id of a built-in one is laid over it, field by field.", true},
	{"class", "What the finding is called: one of the closed list of classes.", true},
	{"scope", "What the rule is judged for: each worker, each instance (an engine with its processes), each GPU or each host.", true},
	{"thresholds", "Named constants, read as t.NAME. Sizes are written with KiB, MiB and GiB.", false},
	{"when", "The condition, in CEL: while it is true the finding is suspected. Write it under `|`. `lowtide rules explain` lists the variables.", true},
	{"confirm", "The condition, beside `when`, that makes the finding confirmed: a second, independent axis of evidence.", false},
	{"refute", "The condition that proves that it is something else, whatever `when` says. Needs `refuted`.", false},
	{"with", "The condition for the severity `with`: a symptom, seen within `pair` of the condition.", false},
	{"ask", "The condition under which a snapshot of the allocator is worth its cost. Only in scope worker.", false},
	{"pair", "How long a symptom stays beside the condition, such as 1h. One hour unless written.", false},
	{"keep", "How long the condition holds after `when` ends, such as 2h.", false},
	{"severity", "How loud the finding is: alone, and with a symptom beside it.", true},
	{"against", "Named conditions that speak against the rule: legitimate reasons for what was seen.", false},
	{"explains", "Classes that are consequences of this one: their findings are told as part of its incident.", false},
	{"summary", "The sentence of the finding. {{variable}} is replaced by its value; [[ ]] is left out when a variable in it is unknown.", true},
	{"refuted", "The sentence that says what it is instead, when `refute` is true.", false},
	{"evidence", "Numbers that go with the finding into the store and onto the card.", false},
	{"advice", "The name of a file in the folder `advice` beside the rules, without .md: what to do.", false},
	{"enabled", "false: the rule is not judged.", false},
	{"shadow", "true: the rule is judged and stored, and never announced.", false},
}

var fieldNames, requiredFields = namesOfFields()

func namesOfFields() (all, required []string) {
	for _, f := range ruleFields {
		all = append(all, f.name)
		if f.required && f.name != "id" {
			required = append(required, f.name)
		}
	}
	return all, required
}
