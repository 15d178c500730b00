//! Viewer, client, operator.

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Look.
    Viewer,
    /// Acquire, renew, release, wait.
    Client,
    /// Order holders to go, pause resources, resize them; list leaks.
    Operator,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 3] = [Role::Viewer, Role::Client, Role::Operator];

    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Client => "client",
            Role::Operator => "operator",
        }
    }

    /// The role with this name.
    pub fn named(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

/// A set of roles. A client and an operator are viewers; an operator is no client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Roles {
    client: bool,
    operator: bool,
}

impl Roles {
    /// Viewer only.
    pub const VIEWER: Roles = Roles { client: false, operator: false };
    /// Viewer and client.
    pub const CLIENT: Roles = Roles { client: true, operator: false };
    /// Viewer and operator.
    pub const OPERATOR: Roles = Roles { client: false, operator: true };
    /// All of them: for tests, and for a server that only trusted programs can reach.
    pub const ALL: Roles = Roles { client: true, operator: true };

    /// Whether the role is among them.
    pub const fn has(self, role: Role) -> bool {
        match role {
            Role::Viewer => true,
            Role::Client => self.client,
            Role::Operator => self.operator,
        }
    }

    /// These roles and this one.
    #[must_use]
    pub const fn with(self, role: Role) -> Roles {
        match role {
            Role::Viewer => self,
            Role::Client => Roles { client: true, ..self },
            Role::Operator => Roles { operator: true, ..self },
        }
    }

    /// Their names.
    pub fn names(self) -> Vec<String> {
        Role::ALL.into_iter().filter(|role| self.has(*role)).map(|role| role.as_str().to_owned()).collect()
    }
}
