//! JSON Schema, as TypeBox prints it, to the model. What has no exact encoding is refused with its place
//! named.

use serde_json::{Map, Value};

use super::SchemaError;
use super::model::{Event, Field, Kind, Shape, Table};
use crate::limits::{TABLE_DEPTH, TABLE_FIELDS};

type Object = Map<String, Value>;

const RECORD: &str = "a record has no fixed fields; use an array of objects with a key field";

/// Keywords that say more than a type can, and the advice for each.
const REFUSED: [(&str, &str); 10] = [
    ("$ref", "references and recursion are not supported; write the type out where it is used"),
    ("$dynamicRef", "references and recursion are not supported; write the type out where it is used"),
    ("allOf", "an intersection is not supported; write one object with all fields"),
    ("oneOf", "write a union as \"anyOf\" of text constants"),
    ("not", "a negation is not supported; say what the field is"),
    ("patternProperties", RECORD),
    ("if", "a condition is not supported; say what the field is"),
    ("prefixItems", "a tuple is not supported; use an object"),
    ("dependentSchemas", "a condition is not supported; say what the field is"),
    ("unevaluatedProperties", "it is not supported; list the fields under \"properties\""),
];

/// The events of a schema file, in the file's order.
pub(super) fn events(text: &str) -> Result<Vec<Event>, SchemaError> {
    let file: Value = serde_json::from_str(text)
        .map_err(|e| SchemaError::new(format!("not JSON: {e}; give a JSON Schema file")))?;
    let Some(Value::Object(events)) = file.get("events") else {
        return Err(SchemaError::new("no \"events\"; write {\"events\": {NAME: JSON Schema}}"));
    };
    let one = |(name, schema): (&String, &Value)| {
        let table = as_object(schema).and_then(event_table);
        table.map(|table| Event::new(name, Some(table))).map_err(|e| e.in_event(name))
    };
    events.iter().map(one).collect()
}

fn event_table(schema: &Object) -> Result<Table, SchemaError> {
    match kind(schema, 0)? {
        (Kind::Table(table), Shape::Single, false) => Ok(table),
        _ => {
            Err(SchemaError::new("an event is an object; write {\"type\": \"object\", \"properties\": ...}"))
        }
    }
}

/// Type, shape, and whether null is allowed. Unions may nest as deep as the JSON reader goes, 128 levels.
fn kind(schema: &Object, depth: usize) -> Result<(Kind, Shape, bool), SchemaError> {
    if let Some((_, advice)) = REFUSED.iter().find(|(keyword, _)| schema.contains_key(*keyword)) {
        return Err(SchemaError::new(*advice));
    }
    let single = |kind| Ok((kind, Shape::Single, false));
    if let Some(union) = schema.get("anyOf") {
        return self::union(as_array(union, "anyOf")?, depth);
    }
    if let Some(only) = schema.get("const") {
        return single(Kind::Enum(members(std::slice::from_ref(only))?));
    }
    if let Some(all) = schema.get("enum") {
        return single(Kind::Enum(members(as_array(all, "enum")?)?));
    }
    match schema.get("type") {
        Some(Value::String(name)) => match &**name {
            "string" => single(Kind::Text),
            "number" => single(Kind::Double),
            "integer" => single(Kind::Int),
            "bigint" | "BigInt" => single(Kind::BigInt),
            "boolean" => single(Kind::Bool),
            "object" => single(Kind::Table(table(schema, depth)?)),
            "array" => Ok((element(schema, depth)?, Shape::Vector, false)),
            other => Err(SchemaError::new(format!(
                "type {other:?} is not supported; \
                 use string, number, integer, bigint, boolean, object or array"
            ))),
        },
        Some(Value::Array(_)) => Err(mixed()),
        _ => Err(SchemaError::new("any value is allowed here, which has no encoding; give it a \"type\"")),
    }
}

fn union(parts: &[Value], depth: usize) -> Result<(Kind, Shape, bool), SchemaError> {
    let null = |part: &&Value| part.get("type").is_some_and(|t| t == "null");
    let nullable = parts.iter().any(|part| null(&part));
    let rest: Vec<&Value> = parts.iter().filter(|part| !null(part)).collect();
    if let [only] = rest[..] {
        return match kind(as_object(only)?, depth)? {
            (Kind::Table(table), Shape::Single, inner) => {
                Ok((Kind::Table(table), Shape::Single, nullable || inner))
            }
            one if !nullable => Ok(one),
            _ => Err(SchemaError::new(
                "only an object may be null; leave the field out of \"required\" instead",
            )),
        };
    }
    let constants: Option<Vec<Value>> = rest.iter().map(|part| part.get("const").cloned()).collect();
    match constants {
        Some(constants) if !nullable => Ok((Kind::Enum(members(&constants)?), Shape::Single, false)),
        Some(_) => {
            Err(SchemaError::new("an enumeration cannot be null; leave the field out of \"required\""))
        }
        None => Err(mixed()),
    }
}

fn mixed() -> SchemaError {
    SchemaError::new(
        "a union of several types has no encoding; choose one type, or one optional field for each",
    )
}

fn members(constants: &[Value]) -> Result<Box<[Box<str>]>, SchemaError> {
    let mut members: Vec<Box<str>> = Vec::with_capacity(constants.len());
    for constant in constants {
        let Value::String(text) = constant else {
            return Err(SchemaError::new(format!("constant {constant} is not a text; use texts")));
        };
        if members.iter().any(|m| **m == **text) {
            return Err(SchemaError::new(format!("member {text:?} occurs twice; remove one")));
        }
        members.push((&**text).into());
    }
    match members.is_empty() {
        true => Err(SchemaError::new("an enumeration needs a member; add one")),
        false => Ok(members.into()),
    }
}

fn element(schema: &Object, depth: usize) -> Result<Kind, SchemaError> {
    let here = |e: SchemaError| e.in_field("[]");
    match schema.get("items") {
        // An array without an element type is one of numbers on the wire of the reference protocol.
        None => Ok(Kind::Double),
        Some(Value::Array(_)) => {
            Err(SchemaError::new("a tuple is not supported; use an object").in_field("[]"))
        }
        Some(items) => match as_object(items).and_then(|items| kind(items, depth)).map_err(here)? {
            (kind, Shape::Single, false) => Ok(kind),
            (_, Shape::Vector, _) => {
                Err(here(SchemaError::new("an array of arrays is not supported; use an array of objects")))
            }
            (_, _, true) => {
                Err(here(SchemaError::new("an element cannot be null; leave it out of the data")))
            }
        },
    }
}

fn table(schema: &Object, depth: usize) -> Result<Table, SchemaError> {
    if depth > TABLE_DEPTH {
        return Err(SchemaError::new(format!("objects nest deeper than {TABLE_DEPTH}; flatten them")));
    }
    if schema.get("additionalProperties").is_some_and(Value::is_object) {
        return Err(SchemaError::new(RECORD));
    }
    let Some(properties) = schema.get("properties") else {
        return Err(SchemaError::new("an object without \"properties\" may hold anything; list its fields"));
    };
    let properties = as_object(properties)?;
    if properties.len() > TABLE_FIELDS {
        return Err(SchemaError::new(format!("more than {TABLE_FIELDS} fields; group them in objects")));
    }
    let required = required(schema, properties)?;
    let field = |(name, schema): (&String, &Value)| {
        let (kind, shape, nullable) =
            as_object(schema).and_then(|s| kind(s, depth + 1)).map_err(|e| e.in_field(name))?;
        let optional = nullable || !required.contains(&&**name);
        Ok(Field { name: (&**name).into(), kind, shape, optional })
    };
    Ok(Table { fields: properties.iter().map(field).collect::<Result<_, SchemaError>>()? })
}

fn required<'a>(schema: &'a Object, properties: &Object) -> Result<Vec<&'a str>, SchemaError> {
    let Some(list) = schema.get("required") else { return Ok(Vec::new()) };
    let name = |entry: &'a Value| match entry.as_str() {
        Some(name) if properties.contains_key(name) => Ok(name),
        _ => Err(SchemaError::new(format!("\"required\" lists {entry}, which \"properties\" does not have"))),
    };
    as_array(list, "required")?.iter().map(name).collect()
}

fn as_object(schema: &Value) -> Result<&Object, SchemaError> {
    schema.as_object().ok_or_else(|| SchemaError::new("not a JSON Schema object; write {\"type\": ...}"))
}

fn as_array<'a>(value: &'a Value, keyword: &str) -> Result<&'a [Value], SchemaError> {
    let array = value.as_array().map(Vec::as_slice);
    array.ok_or_else(|| SchemaError::new(format!("{keyword:?} is not an array; make it one")))
}
