//! The faults of the proxy, in front of an echo server.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::{Direction, Misdelivery, Proxy};

/// Starts an echo server. Returns its port.
async fn echo_server() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await
            });
        }
    });
    port
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap()
}

/// Sends the text and reads as many bytes.
async fn exchange(stream: &mut TcpStream, text: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(text).await?;
    let mut reply = vec![0; text.len()];
    stream.read_exact(&mut reply).await?;
    Ok(reply)
}

#[tokio::test]
async fn a_black_hole_holds_bytes_back_until_it_heals() {
    let proxy = Proxy::start(echo_server().await, 7).await;
    let mut stream = connect(&proxy).await;
    proxy.delay(Duration::from_millis(3));
    assert_eq!(exchange(&mut stream, b"hello").await.unwrap(), b"hello");
    proxy.black_hole();
    let silence = tokio::time::timeout(Duration::from_millis(100), exchange(&mut stream, b"again")).await;
    assert!(silence.is_err(), "no bytes pass");
    proxy.heal();
    let mut late = [0; 5];
    stream.read_exact(&mut late).await.unwrap();
    assert_eq!(&late, b"again", "held back, not lost");
}

#[tokio::test]
async fn connections_are_cut_reset_and_refused_and_replies_lost() {
    let proxy = Proxy::start(echo_server().await, 7).await;
    proxy.cut_after(Direction::Replies, 3);
    let mut stream = connect(&proxy).await;
    stream.write_all(b"hello").await.unwrap();
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply).await;
    assert_eq!(reply, b"hel");

    proxy.lose_replies(1);
    assert!(exchange(&mut connect(&proxy).await, b"hello").await.is_err());
    let mut stream = connect(&proxy).await;
    assert_eq!(exchange(&mut stream, b"hello").await.unwrap(), b"hello");
    proxy.reset();
    assert!(exchange(&mut stream, b"hello").await.is_err());
    proxy.refuse();
    assert!(exchange(&mut connect(&proxy).await, b"hello").await.is_err());
    proxy.heal();
    assert_eq!(exchange(&mut connect(&proxy).await, b"hello").await.unwrap(), b"hello");
    assert_eq!(proxy.connections(), 5);
}

#[tokio::test]
async fn replies_are_delivered_to_the_wrong_request() {
    let proxy = Proxy::start(echo_server().await, 7).await;
    let (mut one, mut other) = (connect(&proxy).await, connect(&proxy).await);
    proxy.misdeliver(Misdelivery::Swap, 1);
    let (for_one, for_other) = tokio::join!(exchange(&mut one, b"one"), exchange(&mut other, b"two"));
    assert_eq!((for_one.unwrap(), for_other.unwrap()), (b"two".to_vec(), b"one".to_vec()));
    assert_eq!(exchange(&mut one, b"uno").await.unwrap(), b"uno");

    proxy.misdeliver(Misdelivery::Stale, 1);
    assert_eq!(exchange(&mut one, b"due").await.unwrap(), b"uno", "the previous reply");
    assert_eq!(exchange(&mut one, b"tre").await.unwrap(), b"tre");

    proxy.misdeliver(Misdelivery::Repeat, 1);
    assert_eq!(exchange(&mut other, b"abc").await.unwrap(), b"abc");
    assert_eq!(exchange(&mut other, b"def").await.unwrap(), b"abc", "the repeated reply");
    assert_eq!(exchange(&mut other, b"ghi").await.unwrap(), b"def", "each reply is one late");
    assert_eq!(proxy.misdelivered(), 3);
}
