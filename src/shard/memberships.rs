//! The rooms of one session, in joining order: one lies where the session lies, more are elsewhere. Most sessions are
//! in one.

use std::ops::{Deref, DerefMut};

use super::session::Membership;

/// A list of memberships.
#[derive(Debug, Default)]
pub struct Memberships(List);

#[derive(Debug, Default)]
enum List {
    #[default]
    None,
    One(Membership),
    Many(Box<Many>),
}

/// Two or more.
#[derive(Debug)]
struct Many(Vec<Membership>);

const _: () = assert!(size_of::<Memberships>() <= 16, "part of every session");

impl Memberships {
    /// Appends.
    pub fn push(&mut self, joined: Membership) {
        match &mut self.0 {
            List::None => self.0 = List::One(joined),
            List::One(first) => self.0 = List::Many(Box::new(Many(vec![*first, joined]))),
            List::Many(many) => many.0.push(joined),
        }
    }

    /// Takes the one at this place out; the others keep their order.
    ///
    /// # Panics
    /// When there is none.
    pub fn remove(&mut self, at: usize) -> Membership {
        match &mut self.0 {
            List::None => panic!("there is no membership {at}"),
            List::One(only) => {
                assert!(at == 0, "there is no membership {at}");
                let removed = *only;
                self.0 = List::None;
                removed
            }
            List::Many(many) => {
                let removed = many.0.remove(at);
                if let [left] = many.0[..] {
                    self.0 = List::One(left);
                }
                removed
            }
        }
    }
}

impl Deref for Memberships {
    type Target = [Membership];

    fn deref(&self) -> &[Membership] {
        match &self.0 {
            List::None => &[],
            List::One(only) => std::slice::from_ref(only),
            List::Many(many) => &many.0,
        }
    }
}

impl DerefMut for Memberships {
    fn deref_mut(&mut self) -> &mut [Membership] {
        match &mut self.0 {
            List::None => &mut [],
            List::One(only) => std::slice::from_mut(only),
            List::Many(many) => &mut many.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::Origin;
    use super::*;

    #[test]
    fn it_is_a_list() {
        let mut list = Memberships::default();
        let mut model = Vec::new();
        // Up to four and down again, taken from the front, the middle and the end.
        for (step, at) in
            [None, None, None, Some(1), None, None, Some(0), Some(2), Some(0), Some(0), None, Some(0)]
                .into_iter()
                .enumerate()
        {
            let room = step as u32;
            match at {
                None => {
                    list.push(Membership { room, place: 0, origin: Origin::Connection, kept: false });
                    model.push(room);
                }
                Some(at) => assert_eq!(list.remove(at).room, model.remove(at)),
            }
            list.iter_mut().for_each(|joined| joined.place += 1);
            assert_eq!(list.iter().map(|joined| joined.room).collect::<Vec<_>>(), model);
        }
        assert!(list.is_empty());
    }

    #[test]
    #[should_panic(expected = "there is no membership 1")]
    fn what_is_not_there_is_not_taken() {
        let mut list = Memberships::default();
        list.push(Membership { room: 7, place: 0, origin: Origin::Identity, kept: false });
        list.remove(1);
    }
}
