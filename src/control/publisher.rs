//! Publishing from the program that embeds the server.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use serde_json::Value;

use super::Orders;
use super::hub::{Hub, Unanswered};
use super::life::Order;
use crate::schema::{DataError, Schema};
use crate::shard::step::{Answer, Ask, Target};

/// Publishes events. Any thread may have one; a clone costs two counters.
#[derive(Debug, Clone)]
pub struct Publisher {
    orders: Orders,
    schema: Arc<Schema>,
}

/// An event that is in the outbox of every receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// For a topic: the epoch of its numbering, opaque, and the event's number within it.
    pub topic: Option<(Box<str>, u64)>,
    /// The client is away; its session keeps the event.
    pub parked: bool,
}

/// Why an event was not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishError {
    /// The schema has no event of this name.
    UnknownEvent(Box<str>),
    /// The data does not fit the event.
    Data(DataError),
    /// The client is not connected, and no session of it waits.
    NotConnected,
    /// Too many commands wait for a core; try again later.
    Overloaded,
    /// The server is ending or has ended. The event may have been published.
    Ended,
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PublishError::UnknownEvent(name) => {
                write!(f, "the schema has no event {name:?}; add it to the schema file")
            }
            PublishError::Data(e) => e.fmt(f),
            PublishError::NotConnected => f.write_str("the client is not connected"),
            PublishError::Overloaded => f.write_str("too many commands wait for a core; try again later"),
            PublishError::Ended => f.write_str("the server has ended"),
        }
    }
}

impl std::error::Error for PublishError {}

impl From<Unanswered> for PublishError {
    fn from(why: Unanswered) -> PublishError {
        match why {
            Unanswered::Overloaded => PublishError::Overloaded,
            Unanswered::Ended | Unanswered::Draining => PublishError::Ended,
        }
    }
}

/// A publish on its way to the control thread.
#[derive(Debug)]
pub struct Errand {
    ask: Ask,
    target: Target,
    done: Sender<Result<Published, PublishError>>,
}

impl Publisher {
    /// For the server behind `orders`, which has this schema.
    pub fn new(orders: Orders, schema: Arc<Schema>) -> Publisher {
        Publisher { orders, schema }
    }

    /// Publishes and waits until the event is in the outbox of every receiver, which is not yet on every wire. Events
    /// that one thread publishes one after the other arrive in that order.
    ///
    /// # Errors
    /// See [`PublishError`]; nothing was published, but for [`PublishError::Ended`].
    pub fn publish(&self, event: &str, data: &Value, target: Target) -> Result<Published, PublishError> {
        let index = self.schema.by_name(event).ok_or_else(|| PublishError::UnknownEvent(event.into()))?;
        let mut payload = Vec::new();
        self.schema.encode_json(index, data, &mut payload).map_err(PublishError::Data)?;
        let (done, answer) = channel();
        let ask = Ask::Publish { event: index, payload: payload.into(), target: target.clone() };
        self.orders.tell(Order::Publish(Errand { ask, target, done }));
        // Without a control thread the sender is dropped with the order.
        answer.recv().unwrap_or(Err(PublishError::Ended))
    }
}

impl Errand {
    /// Runs the errand. Whoever waits for it may have gone away.
    pub async fn run(self, hub: Arc<Hub>) {
        let core = hub.home_of_target(&self.target);
        let result = match hub.ask(core, self.ask).await {
            Ok(Answer::Published { topic, parked }) => Ok(Published { topic, parked }),
            Ok(_) => Err(PublishError::NotConnected),
            Err(why) => Err(why.into()),
        };
        drop(self.done.send(result));
    }
}
