//! The built binary as a command: exit codes, one-line errors, what check and doctor print, publishing.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

/// Runs the program to its end.
fn run(args: &[&str]) -> Output {
    with_input(args, "")
}

fn with_input(args: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seqcast"));
    let ours =
        std::env::vars_os().map(|(name, _)| name).filter(|n| n.to_string_lossy().starts_with("SEQCAST_"));
    ours.for_each(|name| {
        command.env_remove(name);
    });
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that fails before it reads closes its end.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

/// The line on standard error of a command that failed with this code.
fn complaint(output: &Output, code: i32) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(text.lines().count(), 1, "not one line: {text}");
    text.trim_end().to_owned()
}

#[test]
fn wrong_usage_exits_2() {
    for (args, says) in [
        (vec!["frobnicate"], "unrecognized subcommand 'frobnicate'"),
        (vec!["serve", "--no-such-flag"], "unexpected argument '--no-such-flag'"),
        (vec!["serve", "--set", "resume.ttl"], "write KEY=VALUE"),
        (vec!["pub"], "<EVENT> <JSON>"),
        (vec!["pub", "--topic", "a", "--user", "b", "quote", "{}"], "cannot be used with"),
        (vec!["sub", "--count", "x"], "--count"),
    ] {
        let line = complaint(&run(&args), 2);
        assert!(
            line.starts_with("seqcast: ") && line.contains(says) && line.ends_with("; try --help"),
            "{line}"
        );
    }
    assert_eq!(run(&[]).status.code(), Some(2));
}

#[test]
fn help_and_version_exit_0() {
    for args in [["--help", ""], ["--version", ""], ["serve", "--help"], ["pub", "--help"]] {
        let args: Vec<_> = args.into_iter().filter(|a| !a.is_empty()).collect();
        let output = run(&args);
        assert!(output.status.success() && stdout(&output).contains("seqcast"), "{args:?}");
    }
}

#[test]
fn check_prints_values_sources_and_memory() {
    let output =
        run(&["check", "--set", "resume.ttl=9s", "--cores", "1", "--set", "server.max_connections=100"]);
    assert!(output.status.success());
    let lines: Vec<_> = stdout(&output).lines().collect();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let has = |text: &str| lines.iter().any(|l| words(l) == text);
    for line in [
        r#"resume.ttl = "9s" # flag --set resume.ttl"#,
        "server.cores = 1 # flag --cores",
        r#"server.path = "/ws" # default"#,
        "# memory at most, 1 core:",
        "# 53.1 KiB connections, in this process",
        "# 256.0 MiB events of sessions: resume.history_bytes of each core",
    ] {
        assert!(has(line), "no line {line:?} in {lines:#?}");
    }
    assert!(stdout(&output).parse::<toml::Table>().is_ok(), "the whole of it is TOML");
}

#[test]
fn check_warns_of_more_memory_than_there_is() {
    let output = run(&["check", "--set", "resume.history_bytes=1TiB"]);
    assert!(output.status.success());
    assert!(stdout(&output).contains("# warning: these limits allow"), "{}", stdout(&output));
}

#[test]
fn check_and_serve_refuse_what_cannot_be() {
    let folder = std::env::temp_dir().join(format!("seqcast-cli-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let schema = folder.join("schema.json");
    std::fs::write(
        &schema,
        r#"{"events": {"pong": {"type": "object", "properties": {"a": {"type": "string"}}}}}"#,
    )
    .unwrap();
    let schema = format!("schema.file={}", schema.display());
    for command in ["check", "serve"] {
        for (args, says) in [
            (["--set", "resume.tll=9s"], "seqcast: flag --set resume.tll: unknown key tll in [resume]"),
            (["--set", "schema.file=/nonexistent"], "/nonexistent"),
            (["--set", &schema], "this is the name of a control message"),
            (["--admin", "0.0.0.0:0"], "there is no admin.token"),
            (["--config", "/nonexistent"], "seqcast: /nonexistent: cannot read the configuration"),
        ] {
            let all = ["--set", "server.listen=127.0.0.1:0", "--set", "admin.listen=127.0.0.1:0"];
            let line = complaint(&run(&[&[command], &all[..], &args[..]].concat()), 1);
            assert!(line.contains(says), "{command}: {line}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let line = complaint(&run(&["check", "--cores", "8191-8191"]), 1);
    assert!(line.contains("server.cores names processor 8191"), "{line}");
}

#[test]
fn doctor_fails_for_an_address_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["doctor", "--listen", &address, "--admin", ""]);
    assert_eq!(output.status.code(), Some(1));
    let line = stdout(&output).lines().find(|l| l.starts_with("fail") && l.contains(&address));
    assert!(line.is_some_and(|l| l.contains("; stop what listens there")), "{}", stdout(&output));
    assert!(stdout(&output).lines().all(|l| ["ok   ", "warn ", "fail "].contains(&&l[..5])));
}

#[test]
fn doctor_looks_at_the_place_of_the_state() {
    let folder = std::env::temp_dir().join(format!("seqcast-doctor-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let verdict = |file: &std::path::Path| {
        let key = format!("state.file={}", file.display());
        let output = run(&["doctor", "--listen", "127.0.0.1:0", "--admin", "", "--set", &key]);
        let found = stdout(&output).lines().find(|line| line.contains("state.file")).map(str::to_owned);
        (output.status.code(), found.unwrap_or_default())
    };
    let (_, line) = verdict(&folder.join("state"));
    assert!(line.starts_with("ok"), "{line}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "it leaves nothing behind");
    for unusable in [folder.join("missing/state"), folder.clone()] {
        let (code, line) = verdict(&unusable);
        assert_eq!(code, Some(1), "{line}");
        assert!(line.starts_with("fail") && line.contains("; name a file in a folder"), "{line}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn doctor_names_a_configuration_that_cannot_be() {
    let output = run(&["doctor", "--set", "server.pth=/x"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stdout(&output).contains("fail flag --set server.pth: unknown key pth in [server]; did you mean")
    );
}

/// A request that came: number of its connection, request line and headers of interest, body.
type Request = (usize, String, String);

/// An admin API that gives each request the next of these answers, and ends with the requests.
fn admin(answers: Vec<&'static str>) -> (String, JoinHandle<Vec<Request>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let mut requests = Vec::new();
        let mut answers = answers.into_iter();
        for connection in 1.. {
            if answers.len() == 0 {
                break;
            }
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            while let Some((head, body)) = request(&mut stream) {
                requests.push((connection, head, body));
                let answer = answers.next().unwrap();
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
                if answer.contains("Connection: close") || answers.len() == 0 {
                    break;
                }
            }
        }
        requests
    });
    (url, thread)
}

fn request(stream: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        if let Some(n) = line.strip_prefix("Content-Length: ") {
            length = n.trim().parse().unwrap();
        } else if line.starts_with("POST") || line.starts_with("Authorization") {
            head += &line.replace("\r\n", "|");
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    Some((head, String::from_utf8(body).unwrap()))
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"ok\":true}";
const OK_AND_CLOSE: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 11\r\n\r\n{\"ok\":true}";

#[test]
fn pub_sends_the_data_as_it_is_written() {
    for (target, to) in [
        (vec![], r#""all""#),
        (vec!["--topic", "t\"x"], r#"{"topic":"t\"x"}"#),
        (vec!["--group", "g"], r#"{"group":"g"}"#),
        (vec!["--client", "c"], r#"{"client":"c"}"#),
        (vec!["--user", "ü"], r#"{"user":"ü"}"#),
    ] {
        let (url, served) = admin(vec![OK]);
        let data = r#"{"n": 9007199254740993, "x": 1.10}"#;
        let args = [&["pub", "--url", &url, "--token", "tok"], &target[..], &["quote", data]].concat();
        let output = run(&args);
        assert_eq!((output.status.code(), stdout(&output)), (Some(0), ""), "{output:?}");
        let body = format!(r#"{{"event":"quote","to":{to},"data":{data}}}"#);
        let head = "POST /v1/publish HTTP/1.1|Authorization: Bearer tok|".to_owned();
        assert_eq!(served.join().unwrap(), [(1, head, body)]);
    }
}

#[test]
fn pub_reads_lines_over_one_connection() {
    let (url, served) = admin(vec![OK, OK, OK_AND_CLOSE, OK]);
    let output =
        with_input(&["pub", "--url", &url, "quote", "-"], "{\"n\":1}\n\n{\"n\":2}\n{\"n\":3}\n{\"n\":4}");
    assert!(output.status.success(), "{output:?}");
    let got: Vec<_> = served.join().unwrap().into_iter().map(|(c, _, body)| (c, body)).collect();
    let want = |c, n: u32| (c, format!(r#"{{"event":"quote","to":"all","data":{{"n":{n}}}}}"#));
    assert_eq!(got, [want(1, 1), want(1, 2), want(1, 3), want(2, 4)]);
}

#[test]
fn pub_states_what_failed() {
    let refused = "HTTP/1.1 400 Bad Request\r\nContent-Length: 66\r\n\r\n\
        {\"error\":{\"code\":\"bad_data\",\"message\":\"bid: expected a number\"}}  ";
    let (url, served) = admin(vec![OK, refused]);
    let output = with_input(&["pub", "--url", &url, "quote", "-"], "{}\n{}\n{}\n");
    assert_eq!(
        complaint(&output, 1),
        "seqcast: line 2: the server refused the event, 400: bad_data: bid: expected a number"
    );
    assert_eq!(served.join().unwrap().len(), 2, "the first failure ends it");

    let (url, served) = admin(vec!["HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno"]);
    let line = complaint(&run(&["pub", "--url", &url, "quote", "{}"]), 1);
    assert_eq!(line, "seqcast: the server refused the event, 401: no; give the admin token with --token");
    served.join().unwrap();

    for (args, says) in [
        (["pub", "quote", "{not", "--url=unix:/x"], "the data is no JSON: "),
        (["pub", "quote", "@/nonexistent", "--url=unix:/x"], "cannot read /nonexistent: "),
        (["pub", "quote", "{}", "--url=unix:/nonexistent"], "no answer from unix:/nonexistent: "),
        (["pub", "quote", "{}", "--url=https://x"], "\"https://x\" needs TLS"),
        (["pub", "quote", "{}", "--url=x"], "\"x\" is no address of an admin API"),
    ] {
        let line = complaint(&run(&args), 1);
        assert!(line.starts_with(&format!("seqcast: {says}")), "{line}");
    }
}

#[test]
fn sub_and_request_state_what_failed() {
    for args in [
        vec!["sub", "--url", "ws://127.0.0.1:1/ws", "--count", "1"],
        vec!["sub", "--url", "http://127.0.0.1:1/ws"],
        vec!["sub", "--schema", "/nonexistent"],
        vec!["request", "--url", "ws://127.0.0.1:1/ws", "quote", "{}"],
        vec!["request", "quote", "{not"],
        vec!["request", "--url", "ws://127.0.0.1:1/ws", "nope", "{}"],
    ] {
        let line = complaint(&run(&args), 1);
        assert!(line.starts_with("seqcast: "), "{args:?}: {line}");
    }
}
