package engine

import "strings"

// reach is the set of names that lead out of the engine: to files, addresses, other databases and programs.
type reach struct {
	functions map[string]bool // table functions and functions, refused where they are called
	scalars   map[string]bool // functions that also work without parentheses (APPLY f, arrayMap(f, …)): refused as any name
	engines   map[string]bool // table and database engines
}

// allowedFunctions are the table functions that stay within the engine. Every other one that the library has is refused.
// format is not among them although it reads its argument only: with the format Values that argument is SQL, in a string.
var allowedFunctions = wordSet(`numbers numbers_mt zeros zeros_mt primes generaterandom generateseries generate_series values
	sqlstandardvalues view viewifpermitted merge null mergetreeindex mergetreeprojection`)

// allowedEngines are the table and database engines that stay within the engine.
var allowedEngines = wordSet(`mergetree replacingmergetree summingmergetree aggregatingmergetree collapsingmergetree
	versionedcollapsingmergetree coalescingmergetree memory null log tinylog stripelog view materializedview merge buffer set join
	generaterandom atomic`)

// allowedEngineNames are the same as the library spells them, for its own grants.
var allowedEngineNames = strings.Fields(`MergeTree ReplacingMergeTree SummingMergeTree AggregatingMergeTree CollapsingMergeTree
	VersionedCollapsingMergeTree CoalescingMergeTree Memory Null Log TinyLog StripeLog View MaterializedView Merge Buffer Set Join
	GenerateRandom Atomic`)

// reachingScalars are functions, not table functions, that read a file or ask a network service.
const reachingScalars = `file executable catboostevaluate aiclassify aigenerate aiembed aiextract aitranslate`

// knownFunctions and knownEngines are what library 26.7.3 refuses by the rule above; the lists of the loaded library are added
// when it starts.
const (
	knownFunctions = `ytsaurus hudicluster deltalakecluster paimonhdfscluster paimonazurecluster paimons3cluster icebergazurecluster
	icebergs3cluster deltalakeazure paimonhdfs paimon iceberglocal icebergcluster iceberglocalcluster icebergazure
	deltalakeazurecluster icebergs3 iceberg hdfscluster paimonlocal azureblobstoragecluster iceberghdfscluster s3cluster hdfs oss gcs
	hudi cosn s3 azureblobstorage prometheusqueryrange prometheusquery timeseriesselector timeseriesmetrics timeseriestags
	timeseriessamples paimonazure loop postgresql clusterallreplicas jdbc mergetreetextindex mergetreeanalyzeindexesuuid filesystem
	paimons3 dictionary fuzzquery iceberghdfs url fuzzjson deltalakes3 urlcluster deltalakes3cluster deltalakelocal eval filecluster
	file redis arrowstream mergetreeanalyzeindexes input mysql viewexplain odbc mongodb deltalake sqlite cluster paimoncluster
	remotesecure remote timeseriesdata executable python arrowflight s3queue disk`
	knownEngines = `arrowstream gcs oss azureblobstorage keepermap s3 materializedpostgresql postgresql cosn redis ytsaurus mongodb odbc
	deltalakeazure deltalakes3 s3queue hudi paimonlocal mysql paimonazure iceberghdfs fuzzquery alias loop iceberglocal distributed
	replicatedsummingmergetree executablepool executable kafka dictionary queryrunner remote icebergs3 iceberg url file
	replicatedcoalescingmergetree replicatedversionedcollapsingmergetree sqlite timeseries hdfs embeddedrocksdb deltalakelocal
	replicatedcollapsingmergetree paimons3 replicatedgraphitemergetree icebergazure deltalake replicatedmergetree jdbc fuzzjson
	replicatedreplacingmergetree windowview paimon paimonhdfs graphitemergetree filelog replicatedaggregatingmergetree remotesecure
	azurequeue python backup replicated datalakecatalog filesystem ordinary lazy rabbitmq nats materializedmysql`
)

// newReach returns the names that are refused: those known, and every name of the library's lists that is not allowed.
func newReach(functions, engines []string) *reach {
	r := &reach{functions: wordSet(knownFunctions + " " + reachingScalars), scalars: wordSet(reachingScalars), engines: wordSet(knownEngines)}
	for _, name := range functions {
		// format is judged by its arguments.
		if name = strings.ToLower(name); !allowedFunctions[name] && name != "format" {
			r.functions[name] = true
		}
	}
	for _, name := range engines {
		if name = strings.ToLower(name); !allowedEngines[name] {
			r.engines[name] = true
		}
	}
	return r
}
