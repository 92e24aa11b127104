//! What JSON data becomes and what it may not be.

use flatbuffers::FlatBufferBuilder;
use seqcast::limits::ENCODED_BYTES;
use seqcast::schema::{Encoder, Malformed, Schema};
use serde_json::{Value, json};

use crate::random::Random;

fn quote() -> Value {
    json!({"symbol": "AAPL", "bid": 1.5, "ask": 2.5, "bidSize": 3, "askSize": 4, "ts": 5})
}

fn complex() -> Value {
    json!({"id": "c", "names": [], "prices": [], "counts": [], "flags": [], "tags": [], "active": true,
           "total": 1.0, "ts": 1})
}

fn person() -> Value {
    json!({"id": "p", "name": "N", "vip": true, "loyaltyPoints": 12, "rating": 4.75})
}

fn order() -> Value {
    json!({"orderId": "o-1", "customer": person(),
           "lines": [{"sku": "s1", "qty": 2, "unitPrice": 9.5, "tags": ["hot", "sale"]},
                     {"sku": "s2", "qty": 0, "unitPrice": 0.25, "tags": []}],
           "notes": ["first", ""], "discounts": [0.5, -1.0], "active": true,
           "createdAt": 1_720_000_000_000_i64})
}

/// The data with some fields replaced.
fn with(mut data: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        data[key] = value.clone();
    }
    data
}

fn through(event: &str, data: &Value) -> Value {
    let schema = Schema::builtin();
    let event = schema.by_name(event).unwrap();
    let mut payload = Vec::new();
    schema.encode_json(event, data, &mut payload).unwrap();
    schema.verify(event, &payload).unwrap();
    schema.decode_json(event, &payload).unwrap()
}

fn unchanged(event: &str, data: Value) {
    assert_eq!(through(event, &data), data);
}

fn error(event: &str, data: &Value) -> String {
    let schema = Schema::builtin();
    Encoder::new().encode(&schema, schema.by_name(event).unwrap(), data).unwrap_err().to_string()
}

#[test]
fn texts_are_exact() {
    for text in [
        "",
        "ÄÖÜ ß 😀 漢字 \"q\" 'a' \\ \n \t \r",
        "<script>alert('x')</script> && $(rm) `id` | ; %s %n {{7*7}} ../../ --",
        "a\0b\0",
        "IGNX\x10\0\0\0\0\0",
    ] {
        unchanged("quote", with(quote(), json!({"symbol": text})));
        unchanged("order", with(order(), json!({"orderId": text, "notes": [text, text]})));
    }
    unchanged("complex", with(complex(), json!({"names": ["x".repeat(1_000_000)]})));
}

#[test]
fn numbers_are_exact() {
    for (bid, ask) in [(123.456789, -9876.54321), (5e-324, f64::MAX), (f64::MIN_POSITIVE, 0.1 + 0.2)] {
        unchanged("quote", with(quote(), json!({"bid": bid, "ask": ask})));
    }
    for seq in [0, -1, 1 << 53, (1 << 53) + 1, -(1 << 53) - 1, i64::MAX, i64::MIN] {
        unchanged("bigVal", json!({"id": "b", "seq": seq, "when": 1}));
        unchanged("complex", with(complex(), json!({"counts": [seq, 0, seq]})));
    }
}

#[test]
fn numbers_written_in_decimal_are_exact() {
    let schema = Schema::builtin();
    let event = schema.by_name("quote").unwrap();
    let mut random = Random(22);
    for _ in 0..5_000 {
        let bid = f64::from_bits(random.next());
        if !bid.is_finite() || bid == 0.0 {
            continue;
        }
        let text = format!(r#"{{"symbol":"","bid":{bid:e},"ask":{bid},"bidSize":0,"askSize":0,"ts":0}}"#);
        let mut payload = Vec::new();
        schema.encode_json(event, &serde_json::from_str(&text).unwrap(), &mut payload).unwrap();
        let printed = schema.decode_json(event, &payload).unwrap().to_string();
        let again: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!((again["bid"].as_f64(), again["ask"].as_f64()), (Some(bid), Some(bid)), "{text}");
    }
}

#[test]
fn a_whole_number_with_a_fraction_of_zero_is_an_integer_up_to_2_pow_53() {
    let sent = |number: &str| {
        let data: Value = serde_json::from_str(&format!(r#"{{"id":"b","seq":{number},"when":0}}"#)).unwrap();
        let schema = Schema::builtin();
        let event = schema.by_name("bigVal").unwrap();
        let mut payload = Vec::new();
        schema.encode_json(event, &data, &mut payload).map_err(|e| e.to_string())?;
        Ok::<_, String>(schema.decode_json(event, &payload).unwrap()["seq"].clone())
    };
    for (number, integer) in
        [("1.0", 1), ("-0.0", 0), ("1e3", 1000), ("-9007199254740991.0", -(1_i64 << 53) + 1)]
    {
        assert_eq!(sent(number), Ok(json!(integer)), "{number}");
    }
    for number in ["1.5", "9007199254740992.0", "9223372036854775808", "18446744073709551615", "1e300"] {
        let error = sent(number).unwrap_err();
        assert!(error.contains("\"seq\": expected an integer"), "{number}: {error}");
    }
}

#[test]
fn a_negative_zero_keeps_its_sign_in_vectors_and_loses_it_alone() {
    let got = through("complex", &with(complex(), json!({"prices": [-0.0, 0.0], "total": -0.0})));
    let negative = |v: &Value| v.as_f64().unwrap().is_sign_negative();
    assert_eq!((negative(&got["prices"][0]), negative(&got["prices"][1])), (true, false));
    assert!(!negative(&got["total"]));
}

#[test]
fn what_json_cannot_say_becomes_null() {
    let schema = Schema::builtin();
    let mut builder = FlatBufferBuilder::new();
    let prices = builder.create_vector(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0]);
    let table = builder.start_table();
    builder.push_slot_always(4 + 2 * 2, prices);
    builder.push_slot_always(4 + 2 * 7, f64::NAN);
    let root = builder.end_table(table);
    builder.finish_size_prefixed(root, Some("IGNX"));
    let event = schema.by_name("complex").unwrap();
    let got = schema.decode_json(event, builder.finished_data()).unwrap();
    assert_eq!(got["prices"], json!([null, null, null, 1.0]));
    assert_eq!(got["total"], json!(null));
    assert_eq!(got["names"], json!([]));
    assert_eq!(got["id"], json!(""));
}

#[test]
fn vectors_are_exact_whatever_their_length() {
    unchanged("complex", complex());
    unchanged(
        "complex",
        with(
            complex(),
            json!({"names": (0..200).map(|i| format!("n{i}")).collect::<Vec<_>>(),
                   "prices": (0..200).map(|i| f64::from(i) / 7.0).collect::<Vec<_>>(),
                   "counts": (-100..100).collect::<Vec<_>>(),
                   "flags": (0..200).map(|i| i % 3 == 0).collect::<Vec<_>>(),
                   "tags": (0..200).map(|i| ["hot", "new", "sale"][i % 3]).collect::<Vec<_>>()}),
        ),
    );
    let row = |i: i32| {
        json!({"symbol": format!("S{i}"), "quantity": i - 250, "avgPrice": f64::from(i) / 3.0,
               "pnl": f64::from(i) * -1.5})
    };
    let rows: Vec<Value> = (0..500).map(row).collect();
    unchanged(
        "portfolio",
        json!({"accountId": "acc", "positions": rows, "totalValue": 1e6, "cash": -123.45, "ts": 9,
               "updatedBy": "bob"}),
    );
}

#[test]
fn optional_fields_may_be_absent_null_or_empty() {
    unchanged("order", with(order(), json!({"billing": person()})));
    unchanged("order", order());
    assert_eq!(through("order", &with(order(), json!({"billing": null}))), order());
    let portfolio = json!({"accountId": "a", "positions": [], "totalValue": 1.0, "cash": 2.0, "ts": 3});
    unchanged("portfolio", portfolio.clone());
    unchanged("portfolio", with(portfolio, json!({"updatedBy": ""})));
}

#[test]
fn unknown_keys_are_dropped() {
    let noisy = json!({"extra": 1, "more": {"x": []}, "__proto__": {"bid": 9}, "constructor": {"ask": 9}});
    assert_eq!(through("quote", &with(quote(), noisy)), quote());
}

#[test]
fn errors_name_the_field_and_what_was_expected() {
    let lines = |line: Value| with(order(), json!({"lines": [order()["lines"][0], line]}));
    let mut no_ask = quote();
    no_ask.as_object_mut().unwrap().remove("ask");
    let trade = json!({"symbol": "s", "price": 1.0, "volume": 1, "side": "hold", "ts": 2});
    for (event, data, want) in [
        (
            "quote",
            with(quote(), json!({"bid": "x"})),
            r#"field "bid": expected a number, found the text "x""#,
        ),
        ("quote", with(quote(), json!({"bid": null})), r#"field "bid": expected a number, found null"#),
        ("quote", no_ask, r#"field "ask": missing; expected a number"#),
        ("quote", with(quote(), json!({"symbol": 7})), r#"field "symbol": expected a text, found 7"#),
        ("quote", json!([]), "data: expected an object, found an array"),
        ("trade", trade, r#"field "side": expected one of "buy", "sell", found the text "hold""#),
        (
            "complex",
            with(complex(), json!({"flags": [true, 1]})),
            r#"field "flags[1]": expected true or false"#,
        ),
        ("complex", with(complex(), json!({"tags": ["hot", 2]})), r#"field "tags[1]": expected one of"#),
        (
            "complex",
            with(complex(), json!({"names": {}})),
            r#"field "names": expected an array, found an obj"#,
        ),
        ("order", lines(json!({"sku": "s", "qty": 1})), r#"field "lines[1].unitPrice": missing"#),
        ("order", lines(json!(null)), r#"field "lines[1]": expected an object, found null"#),
        ("order", with(order(), json!({"customer": {}})), r#"field "customer.id": missing; expected a text"#),
    ] {
        let got = error(event, &data);
        assert!(got.starts_with(want), "{got}\nwanted {want}");
    }
    let long = error("quote", &with(quote(), json!({"bid": "é".repeat(100_000)})));
    assert!(long.len() < 200, "{} bytes", long.len());
}

#[test]
fn an_encoder_is_as_new_after_an_error_and_after_a_large_payload() {
    let schema = Schema::builtin();
    let (q, o) = (schema.by_name("quote").unwrap(), schema.by_name("order").unwrap());
    let fresh = Encoder::new().encode(&schema, q, &quote()).unwrap().to_vec();
    let mut encoder = Encoder::new();
    let bad =
        with(order(), json!({"lines": [{"sku": "s", "qty": 1, "unitPrice": 1, "tags": ["hot", "cold"]}]}));
    let large = with(order(), json!({"notes": ["x".repeat(3 << 20)]}));
    for _ in 0..3 {
        encoder.encode(&schema, o, &bad).unwrap_err();
        assert_eq!(encoder.encode(&schema, q, &quote()).unwrap(), fresh);
        assert!(encoder.encode(&schema, o, &large).unwrap().len() > 3 << 20);
        assert_eq!(encoder.encode(&schema, q, &quote()).unwrap(), fresh);
    }
    let mut out = b"before".to_vec();
    schema.encode_json(o, &bad, &mut out).unwrap_err();
    assert_eq!(out, b"before");
    schema.encode_json(q, &quote(), &mut out).unwrap();
    assert_eq!(out, [&b"before"[..], &fresh].concat());
}

#[test]
fn a_payload_that_would_grow_too_large_is_refused() {
    let text = "x".repeat(ENCODED_BYTES);
    let got = error("complex", &with(complex(), json!({"names": ["fits", text]})));
    assert!(got.contains("\"names[1]\": the payload passes") && got.contains("send less"), "{got}");
}

#[test]
fn an_event_without_a_model_passes_unverified_and_has_no_json() {
    let schema = Schema::builtin().with_unverified(["raw".into(), "quote".into()].into_iter()).unwrap();
    let raw = schema.by_name("raw").unwrap();
    assert_eq!((schema.len(), schema.has_model(raw)), (7, false));
    assert!(schema.has_model(schema.by_name("quote").unwrap()));
    assert_eq!(schema.verify(raw, b"\xff"), Ok(()));
    assert_eq!(schema.decode_json(raw, b"\xff"), Err(Malformed::NoModel));
    let error = schema.encode_json(raw, &json!({}), &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("payloadB64"), "{error}");
}
