"""Message routing beside its protocol (protocols/message-routing): `conform` checks foreign environments and members."""
