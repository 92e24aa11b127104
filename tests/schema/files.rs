//! Schema files: what is accepted, what it becomes, what is refused and with which words.

use seqcast::schema::{Field, Kind, Schema, Shape};
use serde_json::{Value, json};

fn file(field: Value) -> String {
    json!({"events": {"thing": {"type": "object", "required": ["f"], "properties": {"f": field}}}})
        .to_string()
}

fn field(schema: Value) -> Field {
    let schema = Schema::from_json(&file(schema), "s.json").unwrap();
    schema.events()[0].table.as_ref().unwrap().fields[0].clone()
}

fn refused(text: &str) -> String {
    Schema::from_json(text, "s.json").unwrap_err().to_string()
}

fn members(names: &[&str]) -> Kind {
    Kind::Enum(names.iter().map(|n| Box::from(*n)).collect())
}

#[test]
fn every_kind_of_field() {
    let text = json!({"type": "string", "minLength": 1, "description": "d", "$id": "x", "pattern": "^a"});
    let level = json!({"anyOf": [{"const": "info", "type": "string"}, {"const": "warn", "type": "string"}]});
    for (schema, kind) in [
        (text, Kind::Text),
        (json!({"type": "number", "minimum": 0}), Kind::Double),
        (json!({"type": "integer"}), Kind::Int),
        (json!({"type": "bigint"}), Kind::BigInt),
        (json!({"type": "BigInt"}), Kind::BigInt),
        (json!({"type": "boolean"}), Kind::Bool),
        (level, members(&["info", "warn"])),
        (json!({"const": "only", "type": "string"}), members(&["only"])),
        (json!({"enum": ["b", "a"], "type": "string"}), members(&["b", "a"])),
        (json!({"anyOf": [{"type": "integer"}]}), Kind::Int),
    ] {
        let want = Field { name: "f".into(), kind: kind.clone(), shape: Shape::Single, optional: false };
        assert_eq!(field(schema.clone()), want);
        let want = Field { name: "f".into(), kind, shape: Shape::Vector, optional: false };
        assert_eq!(field(json!({"type": "array", "items": schema})), want);
    }
    assert_eq!(field(json!({"type": "array"})).kind, Kind::Double);
}

#[test]
fn objects_nest_and_null_makes_them_optional() {
    let object = json!({"type": "object", "required": ["b"], "additionalProperties": false,
                        "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}});
    let nullable = field(json!({"anyOf": [object, {"type": "null"}]}));
    let Kind::Table(table) = &nullable.kind else { panic!("{nullable:?}") };
    assert!(nullable.optional);
    let order: Vec<_> = table.fields.iter().map(|f| (&*f.name, f.optional)).collect();
    assert_eq!(order, [("b", false), ("a", true)]);
    let nested = field(json!({"anyOf": [{"type": "null"}, {"anyOf": [object, {"type": "null"}]}]}));
    assert_eq!(nested, nullable);
    assert_eq!(field(json!({"anyOf": [{"anyOf": [object, {"type": "null"}]}]})), nullable);
    let empty = Schema::from_json(r#"{"events":{"e":{"type":"object","properties":{}}}}"#, "s.json").unwrap();
    let mut payload = Vec::new();
    empty.encode_json(0, &json!({"x": 1}), &mut payload).unwrap();
    assert_eq!(empty.decode_json(0, &payload), Ok(json!({})));
}

#[test]
fn absent_scalars_read_as_their_default() {
    let optional = json!({"events": {"e": {"type": "object", "properties": {
        "i": {"type": "integer"}, "d": {"type": "number"}, "b": {"type": "boolean"}, "s": {"type": "string"},
        "e": {"enum": ["x", "y"]}, "v": {"type": "array", "items": {"type": "string"}},
        "t": {"type": "object", "properties": {}}}}}});
    let schema = Schema::from_json(&optional.to_string(), "s.json").unwrap();
    let mut payload = Vec::new();
    schema.encode_json(0, &json!({}), &mut payload).unwrap();
    let want = r#"{"i":0,"d":0.0,"b":false,"e":"x","v":[]}"#;
    assert_eq!(schema.decode_json(0, &payload).unwrap().to_string(), want);
    let full = json!({"i": 1, "d": 2.5, "b": true, "s": "", "e": "y", "v": [""], "t": {}});
    payload.clear();
    schema.encode_json(0, &full, &mut payload).unwrap();
    assert_eq!(schema.decode_json(0, &payload).unwrap(), full);
}

#[test]
fn what_has_no_encoding_is_refused_with_the_field_named() {
    let object = json!({"type": "object", "properties": {}});
    for (schema, why) in [
        (json!({}), "any value"),
        (json!(true), "not a JSON Schema object"),
        (json!({"type": "object"}), "may hold anything"),
        (json!({"type": "object", "patternProperties": {"^.*$": {"type": "string"}}}), "record"),
        (json!({"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}), "record"),
        (json!({"anyOf": [{"type": "string"}, {"type": "number"}]}), "union"),
        (json!({"anyOf": [{"const": "a"}, {"type": "number"}]}), "union"),
        (json!({"anyOf": [object, object]}), "union"),
        (json!({"anyOf": []}), "needs a member"),
        (json!({"anyOf": [{"type": "string"}, {"type": "null"}]}), "\"required\""),
        (json!({"anyOf": [{"const": "a"}, {"const": "b"}, {"type": "null"}]}), "\"required\""),
        (json!({"type": ["string", "null"]}), "union"),
        (json!({"type": "null"}), "\"null\" is not supported"),
        (json!({"type": "Date"}), "\"Date\" is not supported"),
        (json!({"const": 5, "type": "number"}), "not a text"),
        (json!({"enum": ["a", "a"]}), "twice"),
        (json!({"enum": "a"}), "not an array"),
        (json!({"$ref": "#/events/thing"}), "recursion"),
        (json!({"allOf": [object, object]}), "intersection"),
        (json!({"oneOf": [object]}), "anyOf"),
        (json!({"not": {}}), "negation"),
    ] {
        for (place, schema) in [("f", schema.clone()), ("f[]", json!({"type": "array", "items": schema}))] {
            let got = refused(&file(schema));
            let start = format!(r#"s.json: event "thing", field "{place}": "#);
            assert!(got.starts_with(&start) && got.contains(why), "{got}\nwanted {why}");
        }
    }
    let inner = json!({"type": "array", "items": {"type": "number"}});
    let nullable = json!({"anyOf": [object, {"type": "null"}]});
    for (items, why) in [
        (inner, "array of arrays"),
        (nullable, "cannot be null"),
        (json!([{"type": "number"}, {"type": "number"}]), "tuple"),
    ] {
        let got = refused(&file(json!({"type": "array", "items": items})));
        assert!(got.contains(r#"field "f[]""#) && got.contains(why), "{got}");
    }
}

#[test]
fn the_path_of_a_nested_field_is_named() {
    let rows = json!({"type": "array", "items": {"type": "object", "properties": {"deep": {}}}});
    let got = refused(&file(json!({"type": "object", "properties": {"rows": rows}})));
    assert!(got.starts_with(r#"s.json: event "thing", field "f.rows[].deep": any value"#), "{got}");
}

#[test]
fn names_that_cannot_be_are_refused() {
    let event = |names: &[&str]| {
        let events: serde_json::Map<_, _> =
            names.iter().map(|n| ((*n).to_owned(), json!({"type": "object", "properties": {}}))).collect();
        refused(&json!({"events": events}).to_string())
    };
    for (names, want) in [
        (&["pong"][..], r#"s.json: event "pong": this is the name of a control message"#),
        (&["altoxyc"], r#"s.json: event "altoxyc": its id 7adb16b7 is that of control message "pong""#),
        (&["declinate", "macallums"], r#"event "macallums": its id "#),
        (&["declinate", "macallums"], r#"is that of event "declinate" too"#),
        (&[""], "needs a name"),
    ] {
        assert!(event(names).contains(want), "{}", event(names));
    }
    for name in ["ping", "altoxyc", ""] {
        assert!(Schema::builtin().with_unverified([name.into()].into_iter()).is_err(), "{name}");
    }
    let twice = Schema::builtin().with_unverified(["declinate".into(), "macallums".into()].into_iter());
    assert!(twice.unwrap_err().to_string().contains("declinate"));
}

#[test]
fn files_that_are_no_schema_are_refused() {
    for (text, why) in [
        ("", "s.json: not JSON"),
        ("{\"events\": {\n  nonsense", "line 2"),
        ("[]", "no \"events\""),
        ("{\"events\": []}", "no \"events\""),
        ("{\"events\": {\"e\": {\"type\": \"string\"}}}", "event \"e\": an event is an object"),
        ("{\"events\": {\"e\": {\"type\": \"array\"}}}", "an event is an object"),
        ("{\"events\": {\"e\": 5}}", "event \"e\": not a JSON Schema object"),
        (r#"{"events":{"e":{"type":"object","properties":{},"required":["x"]}}}"#, r#""required" lists "x""#),
    ] {
        assert!(refused(text).contains(why), "{}", refused(text));
    }
    let fbs = Schema::from_json("table T {}", "dir/app.fbs").unwrap_err().to_string();
    assert_eq!(fbs, "dir/app.fbs: .fbs is not supported yet; give a JSON Schema file");
}

#[test]
fn depth_and_width_are_bounded() {
    let nested = |levels: usize| {
        (0..levels).fold(
            json!({"type": "number"}),
            |inner, _| json!({"type": "array", "items": {"type": "object", "properties": {"f": inner}}}),
        )
    };
    assert!(Schema::from_json(&file(nested(8)), "s.json").is_ok());
    assert!(refused(&file(nested(9))).contains("deeper than 8"));
    assert!(refused(&file(nested(40))).contains("deeper than 8"));
    let wide = |fields: usize| {
        let properties: serde_json::Map<_, _> =
            (0..fields).map(|i| (format!("f{i}"), json!({"type": "integer"}))).collect();
        file(json!({"type": "object", "properties": properties}))
    };
    assert!(Schema::from_json(&wide(1024), "s.json").is_ok());
    assert!(refused(&wide(1025)).contains("more than 1024 fields"));
}

#[test]
fn the_fingerprint_is_that_of_the_tables() {
    let of = |text: &str| Schema::from_json(text, "s.json").unwrap().fingerprint();
    assert_eq!(Schema::builtin().fingerprint(), 1_592_463_985);
    let a =
        r#"{"type":"object","required":["x"],"properties":{"x":{"type":"integer"},"y":{"enum":["p","q"]}}}"#;
    let b = r#"{"type":"object","properties":{"x":{"type":"number"}}}"#;
    let base = of(&format!(r#"{{"events":{{"a":{a},"b":{b}}}}}"#));
    assert_eq!(of(&format!(r#"{{"events":{{"b":{b},"a":{a}}}}}"#)), base);
    for changed in [
        a.replace("integer", "bigint"),
        a.replace("integer", "number"),
        a.replace(r#"["x"]"#, "[]"),
        a.replace(r#""x""#, r#""z""#),
        a.replace(r#""p","q""#, r#""q","p""#),
        a.replace(r#"{"type":"integer"}"#, r#"{"type":"array","items":{"type":"integer"}}"#),
    ] {
        assert_ne!(of(&format!(r#"{{"events":{{"a":{changed},"b":{b}}}}}"#)), base, "{changed}");
    }
    let plus = Schema::builtin().with_unverified(["raw".into()].into_iter()).unwrap();
    assert_eq!(plus.fingerprint(), Schema::builtin().fingerprint());
}
