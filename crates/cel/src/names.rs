//! The names that expressions can use besides `device` and the variables of macros.

/// Names of types, which are values too.
pub(crate) const TYPES: [&str; 10] =
    ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];

/// First parts of the qualified names of functions that the evaluator implements, such as `optional.of`.
pub(crate) const NAMESPACES: [&str; 5] = ["cel", "lists", "optional", "sets", "strings"];

/// First parts of qualified names that only Kubernetes has.
pub(crate) const UNIMPLEMENTED_NAMESPACES: [&str; 4] = ["format", "google", "math", "net"];

/// Functions whose first arguments are variables for the others, where the parser does not expand them as macros.
pub(crate) const BINDERS: [&str; 9] = [
    "all",
    "bind",
    "exists",
    "existsOne",
    "exists_one",
    "sortBy",
    "transformList",
    "transformMap",
    "transformMapEntry",
];

/// Functions that the evaluator implements, besides operators.
pub(crate) const FUNCTIONS: [&str; 61] = [
    "add",
    "asApproximateFloat",
    "asInteger",
    "bool",
    "bytes",
    "charAt",
    "compareTo",
    "contains",
    "distinct",
    "double",
    "dyn",
    "endsWith",
    "equivalent",
    "first",
    "flatten",
    "format",
    "hasValue",
    "includes",
    "indexOf",
    "int",
    "intersects",
    "isGreaterThan",
    "isInteger",
    "isLessThan",
    "isQuantity",
    "isSemver",
    "join",
    "last",
    "lastIndexOf",
    "lowerAscii",
    "major",
    "matches",
    "minor",
    "none",
    "of",
    "ofNonZeroValue",
    "or",
    "orValue",
    "patch",
    "quantity",
    "quote",
    "range",
    "replace",
    "reverse",
    "semver",
    "sign",
    "size",
    "slice",
    "sort",
    "sortBy",
    "split",
    "startsWith",
    "string",
    "sub",
    "substring",
    "trim",
    "type",
    "uint",
    "unwrap",
    "upperAscii",
    "value",
];
